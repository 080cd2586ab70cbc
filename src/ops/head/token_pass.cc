#include "ops/head/token_pass.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "base/error.h"
#include "kernels/head/decide.h"
#include "kernels/head/row_stats.h"
#include "kernels/head/unnormalised_gradient.h"
#include "ops/launch.h"

namespace augur {
namespace {

template <typename T>
T* DataOrNull(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<T>() : nullptr;
}

template <typename T>
const T* ConstDataOrNull(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

LogitRows RowsOf(const LogitView& view, int64_t rows) {
  return {view.logits.const_data_ptr(),
          ElementTypeOf(view.logits),
          rows,
          view.logits.stride(0),
          view.vocab_size,
          view.support.const_data_ptr<int32_t>(),
          static_cast<int>(view.support.size(1)),
          view.temperature,
          view.softcap};
}

template <typename T>
DecideInput<T> DecideInputOf(const TokenPass& pass, int64_t vocab_size) {
  return {ConstDataOrNull<T>(pass.behaviour),     ConstDataOrNull<T>(pass.policy),
          ConstDataOrNull<T>(pass.advantages),    ConstDataOrNull<T>(pass.tail_square),
          ConstDataOrNull<T>(pass.tail_mass),     pass.tokens(),
          static_cast<int>(pass.support.size(1)), vocab_size};
}

template <typename T>
SurrogateInput<T> SurrogateInputOf(const TokenPass& pass) {
  SurrogateInput<T> in;
  in.behaviour = ConstDataOrNull<T>(pass.behaviour);
  in.policy = ConstDataOrNull<T>(pass.policy);
  in.advantage = ConstDataOrNull<T>(pass.advantages);
  in.weight = ConstDataOrNull<T>(pass.weights);
  in.ratio = ConstDataOrNull<T>(pass.ratio);
  in.divergence = ConstDataOrNull<T>(pass.divergence);
  in.coefficient = ConstDataOrNull<T>(pass.coefficient);
  in.flags = ConstDataOrNull<uint8_t>(pass.flags);
  in.entropy = ConstDataOrNull<T>(pass.entropy);
  in.reference_logprob = ConstDataOrNull<T>(pass.reference);
  in.tokens = pass.tokens();
  in.columns = static_cast<int>(pass.support.size(1));
  return in;
}

}  // namespace

void CheckLogitOptions(const LogitOptions& options) {
  if (!(options.temperature > 0) || !std::isfinite(options.temperature)) {
    throw Error("temperature", fmt::format("is {}", options.temperature),
                "pass the temperature the tokens were sampled at, above 0");
  }
  if (!(options.softcap >= 0) || !std::isfinite(options.softcap)) {
    throw Error("softcap", fmt::format("is {}", options.softcap), "pass 0 for none, or a positive bound");
  }
}

void CheckRecordedTokens(const NamedTensor& first, const RecordedTokens& recorded, const LossTerms& terms,
                         int64_t vocab_size, bool validate) {
  const int64_t tokens = first.tensor.size(0);
  CheckShape({"support_ids", recorded.support_ids}, {tokens, -1});
  CheckShape({"support_logprobs", recorded.support_logprobs}, recorded.support_ids.sizes());
  CheckShape({"advantages", recorded.advantages}, {tokens});
  if (recorded.weights.defined()) {
    CheckShape({"weights", recorded.weights}, {tokens});
    if (!recorded.weights.is_floating_point()) {
      throw Error("weights",
                  fmt::format("has dtype {}, as a mask has, and would add up the tokens' losses",
                              c10::toString(recorded.weights.scalar_type())),
                  "pass augur.token_weights(sequences), which makes a mean of them, or the mask as floats if "
                  "the sum is wanted");
    }
  }
  if (recorded.reference_logprobs.defined()) {
    CheckShape({"reference_logprobs", recorded.reference_logprobs}, {tokens});
  } else if (terms.reference_kl != ReferenceKl::kNone) {
    throw Error("reference_logprobs", "are missing, and the reference KL needs them",
                "pass the reference model's log-probs of the sampled tokens, or set reference_kl to none");
  }
  CheckFloating(first);
  CheckFloating({"support_logprobs", recorded.support_logprobs});
  CheckFloating({"advantages", recorded.advantages});
  const auto id_type = recorded.support_ids.scalar_type();
  if (id_type != at::kInt && id_type != at::kLong) {
    throw Error("support_ids", fmt::format("has dtype {}", c10::toString(id_type)),
                "pass int32 or int64 ids");
  }
  if (recorded.support_ids.size(1) < 1) {
    throw Error("support_ids", "has no columns", "column 0 holds the sampled token");
  }
  CheckSameDevice({first,
                   {"support_ids", recorded.support_ids},
                   {"support_logprobs", recorded.support_logprobs},
                   {"advantages", recorded.advantages},
                   {"weights", recorded.weights},
                   {"reference_logprobs", recorded.reference_logprobs}});
  if (validate) {
    CheckSupportIds(recorded.support_ids, recorded.support_logprobs, vocab_size);
    CheckSupportLogprobs(recorded.support_logprobs, at::Tensor(), vocab_size, "support_logprobs");
    CheckFinite({"advantages", recorded.advantages});
    if (recorded.weights.defined()) CheckFinite({"weights", recorded.weights});
  }
}

TokenPass TokenPass::Slice(int64_t begin, int64_t count) const {
  const auto part = [&](const at::Tensor& x) { return x.defined() ? x.narrow(0, begin, count) : x; };
  TokenPass out;
  out.support = part(support);
  out.behaviour = part(behaviour);
  out.advantages = part(advantages);
  out.weights = part(weights);
  out.reference = part(reference);
  out.log_sum_exp = part(log_sum_exp);
  out.entropy = part(entropy);
  out.tail_mass = part(tail_mass);
  out.tail_square = part(tail_square);
  out.policy = part(policy);
  out.ratio = part(ratio);
  out.divergence = part(divergence);
  out.direction = part(direction);
  out.coefficient = part(coefficient);
  out.flags = part(flags);
  out.loss = part(loss);
  out.dense = part(dense);
  out.entropy_weight = part(entropy_weight);
  out.sparse = part(sparse);
  return out;
}

TokenPass StartRowStats(const at::Tensor& ids, at::ScalarType type) {
  TokenPass pass;
  pass.support = ids.to(at::kInt).contiguous();
  const auto floats = pass.support.options().dtype(type);
  for (at::Tensor* per_token : {&pass.log_sum_exp, &pass.entropy, &pass.tail_mass, &pass.tail_square}) {
    *per_token = at::empty({pass.tokens()}, floats);
  }
  pass.policy = at::empty(pass.support.sizes(), floats);
  return pass;
}

TokenPass StartTokenPass(const RecordedTokens& recorded, at::ScalarType type) {
  const auto prepared = [&](const at::Tensor& x) {
    return x.defined() ? x.detach().to(type).contiguous() : at::Tensor();
  };
  TokenPass pass = StartRowStats(recorded.support_ids, type);
  pass.behaviour = prepared(recorded.support_logprobs);
  pass.advantages = prepared(recorded.advantages);
  pass.reference = prepared(recorded.reference_logprobs);
  pass.weights = prepared(recorded.weights);
  if (!pass.weights.defined()) {
    const at::Tensor present = pass.support.select(1, 0).ge(0).to(type);
    pass.weights = present.div(present.sum().clamp_min(1));
  }
  const auto floats = pass.policy.options();
  for (at::Tensor* per_token : {&pass.ratio, &pass.divergence, &pass.direction, &pass.coefficient, &pass.loss,
                                &pass.dense, &pass.entropy_weight}) {
    *per_token = at::empty({pass.tokens()}, floats);
  }
  pass.flags = at::empty({pass.tokens()}, floats.dtype(at::kByte));
  return pass;
}

void ComputeRowStats(const LogitView& view, const at::Tensor& support_logits, const TokenPass& pass,
                     const Unnormalised& unnormalised) {
  WithComputeType(pass.policy.scalar_type(), [&]<typename T>(T) {
    Run(view.logits, RowStatsCpu<T>, RowStatsCuda<T>, RowsOf(view, pass.tokens()),
        RowStats<T>{ConstDataOrNull<T>(support_logits), DataOrNull<T>(pass.log_sum_exp),
                    DataOrNull<T>(pass.entropy), DataOrNull<T>(pass.tail_mass),
                    DataOrNull<T>(pass.tail_square), DataOrNull<T>(pass.policy),
                    DataOrNull<T>(unnormalised.reference), DataOrNull<int32_t>(unnormalised.overflowed)});
  });
}

void DecideTokens(const LossTerms& terms, int64_t vocab_size, const TokenPass& pass) {
  WithComputeType(pass.policy.scalar_type(), [&]<typename T>(T) {
    Run(pass.policy, DecideCpu<T>, DecideCuda<T>, terms.rule, DecideInputOf<T>(pass, vocab_size),
        DecideOutput<T>{DataOrNull<T>(pass.ratio), DataOrNull<T>(pass.divergence),
                        DataOrNull<T>(pass.direction), DataOrNull<uint8_t>(pass.flags),
                        DataOrNull<T>(pass.coefficient)});
    Run(pass.policy, SurrogateCpu<T>, SurrogateCuda<T>, terms, SurrogateInputOf<T>(pass),
        SurrogateOutput<T>{DataOrNull<T>(pass.loss), DataOrNull<T>(pass.dense),
                           DataOrNull<T>(pass.entropy_weight)});
  });
}

void ComputeRowGradient(const LogitView& view, const TokenPass& pass, const GradientTarget& target) {
  WithComputeType(pass.dense.scalar_type(), [&]<typename T>(T) {
    Run(view.logits, RowGradientCpu<T>, RowGradientCuda<T>, RowsOf(view, target.gradient.size(0)),
        RowGradient<T>{ConstDataOrNull<T>(pass.log_sum_exp), ConstDataOrNull<T>(pass.entropy),
                       ConstDataOrNull<T>(pass.dense), ConstDataOrNull<T>(pass.entropy_weight),
                       ConstDataOrNull<T>(pass.sparse),
                       target.precise_support ? ConstDataOrNull<T>(pass.policy) : nullptr,
                       ConstDataOrNull<T>(target.scale), ConstDataOrNull<int32_t>(target.source),
                       target.gradient.mutable_data_ptr()});
  });
}

at::Tensor ComputeUnnormalisedGradient(const LogitView& view, const TokenPass& pass,
                                       const Unnormalised& unnormalised, const GradientTarget& target) {
  const int64_t rows = target.gradient.size(0);
  const at::Tensor factor = at::empty({rows}, pass.dense.options());
  WithComputeType(pass.dense.scalar_type(), [&]<typename T>(T) {
    Run(view.logits, UnnormalisedGradientCpu<T>, UnnormalisedGradientCuda<T>, RowsOf(view, rows),
        UnnormalisedGradient<T>{ConstDataOrNull<T>(pass.log_sum_exp),
                                ConstDataOrNull<T>(unnormalised.reference), ConstDataOrNull<T>(pass.dense),
                                ConstDataOrNull<T>(pass.policy), ConstDataOrNull<T>(target.scale),
                                ConstDataOrNull<int32_t>(target.source), DataOrNull<T>(factor)});
  });
  return factor;
}

LogProbs LogProbsOf(const TokenPass& pass) {
  return {pass.policy, pass.tail_mass, pass.tail_square, pass.entropy};
}

PolicyLoss FinishTokenPass(const LossTerms& terms, const TokenPass& pass) {
  PolicyLoss result;
  result.sums = at::empty({kDecisionSums}, pass.policy.options().dtype(at::kDouble));
  WithComputeType(pass.policy.scalar_type(), [&]<typename T>(T) {
    Run(pass.policy, DecisionSumsCpu<T>, DecisionSumsCuda<T>, terms.rule, SurrogateInputOf<T>(pass),
        ConstDataOrNull<T>(pass.loss), DataOrNull<double>(result.sums));
  });
  // Copied: an output of an operator must not be a view of another.
  result.loss = result.sums.select(0, kSumLoss).to(pass.policy.scalar_type(), false, true);
  result.policy = LogProbsOf(pass);
  result.ratio = pass.ratio;
  result.divergence = pass.divergence;
  result.direction = pass.direction;
  result.flags = pass.flags;
  result.keep = pass.flags.bitwise_and(kKept).to(at::kBool);
  return result;
}

}  // namespace augur
