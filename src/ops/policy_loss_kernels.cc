#include "ops/policy_loss_kernels.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>

#include "base/error.h"
#include "kernels/decide.h"
#include "kernels/row_stats.h"
#include "ops/checks.h"
#include "ops/device.h"

namespace augur {
namespace {

ElementType ElementTypeOf(const at::Tensor& logits) {
  switch (logits.scalar_type()) {
    case at::kDouble:
      return ElementType::kDouble;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    case at::kHalf:
      return ElementType::kHalf;
    default:
      return ElementType::kFloat;
  }
}

// The logits as a kernel reads them: dense, and on the CPU never half, which has no kernel there.
at::Tensor ReadableLogits(const at::Tensor& logits) {
  const at::Tensor detached = logits.detach();
  const bool widen = detached.is_cpu() && detached.scalar_type() == at::kHalf;
  return (widen ? detached.to(at::kFloat) : detached).contiguous();
}

LogitRows RowsOf(const at::Tensor& logits, const at::Tensor& support, double temperature, int64_t vocab_size,
                 double softcap) {
  return {logits.const_data_ptr(),
          ElementTypeOf(logits),
          logits.size(0),
          logits.size(1),
          vocab_size,
          support.const_data_ptr<int32_t>(),
          static_cast<int>(support.size(1)),
          temperature,
          softcap};
}

// The same call on either device.
template <typename Cpu, typename Cuda, typename... Args>
void Run(const at::Tensor& on, Cpu cpu, Cuda cuda, Args&&... args) {
  if (on.is_cuda()) {
    cuda(args..., CurrentStream(on));
  } else {
    cpu(args...);
  }
}

void CheckOptions(const LossOptions& options) {
  if (!(options.temperature > 0) || !std::isfinite(options.temperature)) {
    throw Error("temperature", fmt::format("is {}", options.temperature),
                "pass the temperature the tokens were sampled at, above 0");
  }
  if (!(options.softcap >= 0) || !std::isfinite(options.softcap)) {
    throw Error("softcap", fmt::format("is {}", options.softcap), "pass 0 for none, or a positive bound");
  }
}

int64_t CheckedVocabSize(const LossOptions& options, int64_t columns) {
  if (options.vocab_size < 0 || options.vocab_size > columns) {
    throw Error("vocab_size",
                fmt::format("is {}, but the logits have {} columns", options.vocab_size, columns),
                "pass the real vocabulary size, or 0 for all columns");
  }
  return options.vocab_size == 0 ? columns : options.vocab_size;
}

void CheckArguments(const at::Tensor& logits, const RecordedTokens& recorded, const LossOptions& options,
                    int64_t vocab_size) {
  CheckShape({"support_ids", recorded.support_ids}, {logits.size(0), -1});
  CheckShape({"support_logprobs", recorded.support_logprobs}, recorded.support_ids.sizes());
  CheckShape({"advantages", recorded.advantages}, {logits.size(0)});
  if (recorded.weights.defined()) CheckShape({"weights", recorded.weights}, {logits.size(0)});
  if (recorded.reference_logprobs.defined()) {
    CheckShape({"reference_logprobs", recorded.reference_logprobs}, {logits.size(0)});
  } else if (options.reference_kl != ReferenceKl::kNone) {
    throw Error("reference_logprobs", "are missing, and the reference KL needs them",
                "pass the reference model's log-probs of the sampled tokens, or set reference_kl to none");
  }
  CheckFloating({"logits", logits});
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
  CheckSameDevice({{"logits", logits},
                   {"support_ids", recorded.support_ids},
                   {"support_logprobs", recorded.support_logprobs},
                   {"advantages", recorded.advantages},
                   {"weights", recorded.weights},
                   {"reference_logprobs", recorded.reference_logprobs}});
  if (options.validate) {
    CheckSupportIds(recorded.support_ids, recorded.support_logprobs, vocab_size);
    CheckSupportLogprobs(recorded.support_logprobs, at::Tensor(), vocab_size, "support_logprobs");
    CheckFinite({"advantages", recorded.advantages});
    if (recorded.weights.defined()) CheckFinite({"weights", recorded.weights});
  }
}

template <typename T>
PolicyLossForward Forward(const MaskRule& rule, const at::Tensor& logits, const RecordedTokens& recorded,
                          const LossOptions& options, int64_t vocab_size) {
  const auto type = c10::CppTypeToScalarType<T>::value;
  const int64_t tokens = logits.size(0), columns = recorded.support_ids.size(1);
  const auto floats = logits.options().dtype(type).requires_grad(false);
  const auto prepared = [&](const at::Tensor& x) {
    return x.defined() ? x.detach().to(type).contiguous() : at::Tensor();
  };
  const auto per_token = [&] { return at::empty({tokens}, floats); };

  const at::Tensor readable = ReadableLogits(logits);
  PolicyLossForward out;
  out.support = recorded.support_ids.to(at::kInt).contiguous();
  const at::Tensor behaviour = prepared(recorded.support_logprobs);
  const at::Tensor advantages = prepared(recorded.advantages);
  const at::Tensor reference = prepared(recorded.reference_logprobs);
  at::Tensor weights = prepared(recorded.weights);
  if (!weights.defined()) {
    const at::Tensor present = out.support.select(1, 0).ge(0).to(type);
    weights = present.div(present.sum().clamp_min(1));
  }

  out.log_sum_exp = per_token();
  out.result.entropy = per_token();
  const at::Tensor tail_mass = per_token(), tail_square = per_token();
  const at::Tensor policy = at::empty({tokens, columns}, floats);
  const LogitRows rows = RowsOf(readable, out.support, options.temperature, vocab_size, options.softcap);
  Run(logits, RowStatsCpu<T>, RowStatsCuda<T>, rows,
      RowStats<T>{nullptr, out.log_sum_exp.template mutable_data_ptr<T>(),
                  out.result.entropy.template mutable_data_ptr<T>(), tail_mass.template mutable_data_ptr<T>(),
                  tail_square.template mutable_data_ptr<T>(), policy.template mutable_data_ptr<T>()});

  out.result.ratio = per_token();
  out.result.divergence = per_token();
  out.result.direction = per_token();
  out.result.flags = at::empty({tokens}, floats.dtype(at::kByte));
  const DecideInput<T> decide{behaviour.template const_data_ptr<T>(),
                              policy.template const_data_ptr<T>(),
                              advantages.template const_data_ptr<T>(),
                              tail_square.template const_data_ptr<T>(),
                              tail_mass.template const_data_ptr<T>(),
                              tokens,
                              static_cast<int>(columns),
                              vocab_size};
  Run(logits, DecideCpu<T>, DecideCuda<T>, rule, decide,
      DecideOutput<T>{out.result.ratio.template mutable_data_ptr<T>(),
                      out.result.divergence.template mutable_data_ptr<T>(),
                      out.result.direction.template mutable_data_ptr<T>(),
                      out.result.flags.template mutable_data_ptr<uint8_t>()});

  const at::Tensor loss = per_token();
  out.dense = per_token();
  out.entropy_weight = per_token();
  out.sparse = at::empty({tokens, columns}, floats);
  SurrogateInput<T> terms;
  terms.behaviour = decide.behaviour;
  terms.policy = decide.policy;
  terms.policy_tail = decide.policy_tail;
  terms.advantage = decide.advantage;
  terms.weight = weights.template const_data_ptr<T>();
  terms.ratio = out.result.ratio.template const_data_ptr<T>();
  terms.divergence = out.result.divergence.template const_data_ptr<T>();
  terms.flags = out.result.flags.template const_data_ptr<uint8_t>();
  terms.entropy = out.result.entropy.template const_data_ptr<T>();
  terms.reference_logprob = reference.defined() ? reference.template const_data_ptr<T>() : nullptr;
  terms.tokens = tokens;
  terms.columns = static_cast<int>(columns);
  terms.vocab_size = vocab_size;
  terms.entropy_bonus = options.entropy_bonus;
  terms.reference_weight = options.reference_weight;
  terms.reference_kl = options.reference_kl;
  Run(logits, SurrogateCpu<T>, SurrogateCuda<T>, rule, terms,
      SurrogateOutput<T>{loss.template mutable_data_ptr<T>(), out.dense.template mutable_data_ptr<T>(),
                         out.entropy_weight.template mutable_data_ptr<T>(),
                         out.sparse.template mutable_data_ptr<T>()});

  out.result.sums = at::empty({kDecisionSums}, floats.dtype(at::kDouble));
  Run(logits, DecisionSumsCpu<T>, DecisionSumsCuda<T>, rule, terms, loss.template const_data_ptr<T>(),
      out.result.sums.template mutable_data_ptr<double>());
  out.result.loss = out.result.sums.select(0, kSumLoss).to(type);
  out.result.logprobs = policy.select(1, 0).contiguous();
  out.result.keep = out.result.flags.bitwise_and(kKept).to(at::kBool);
  return out;
}

}  // namespace

ReferenceKl ParseReferenceKl(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames = {"none", "k1", "k2", "k3"};
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<ReferenceKl>(i);
  }
  throw UnknownName("reference_kl", "estimator", name, kNames);
}

PolicyLossForward PolicyLossForwardImpl(const MaskRule& rule, const at::Tensor& logits,
                                        const RecordedTokens& recorded, const LossOptions& options) {
  CheckShape({"logits", logits}, {-1, -1});
  CheckOptions(options);
  const int64_t vocab_size = CheckedVocabSize(options, logits.size(1));
  CheckArguments(logits, recorded, options, vocab_size);
  return logits.scalar_type() == at::kDouble ? Forward<double>(rule, logits, recorded, options, vocab_size)
                                             : Forward<float>(rule, logits, recorded, options, vocab_size);
}

at::Tensor PolicyLossBackwardImpl(const at::Tensor& grad_loss, const at::Tensor& logits,
                                  const at::Tensor& support, const at::Tensor& log_sum_exp,
                                  const at::Tensor& entropy, const at::Tensor& dense,
                                  const at::Tensor& entropy_weight, const at::Tensor& sparse,
                                  double temperature, int64_t vocab_size, double softcap) {
  const at::Tensor readable = ReadableLogits(logits);
  const at::Tensor gradient = at::empty_like(readable);
  const at::Tensor scale = grad_loss.to(log_sum_exp.scalar_type()).contiguous();
  const LogitRows rows =
      RowsOf(readable, support, temperature, vocab_size == 0 ? logits.size(1) : vocab_size, softcap);
  const auto run = [&]<typename T>(T) {
    Run(logits, RowGradientCpu<T>, RowGradientCuda<T>, rows,
        RowGradient<T>{log_sum_exp.const_data_ptr<T>(), entropy.const_data_ptr<T>(),
                       dense.const_data_ptr<T>(), entropy_weight.const_data_ptr<T>(),
                       sparse.const_data_ptr<T>(), scale.const_data_ptr<T>(), gradient.mutable_data_ptr()});
  };
  if (logits.scalar_type() == at::kDouble) {
    run(double());
  } else {
    run(float());
  }
  return gradient.to(logits.scalar_type());
}

}  // namespace augur
