#include "ops/head/decide.h"

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "kernels/head/decide.h"
#include "mask/response_rules.h"
#include "ops/checks.h"
#include "ops/device.h"
#include "ops/head/outside_budget.h"

namespace augur {
namespace {

template <typename T>
const T* PointerOrNull(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<T>() : nullptr;
}

template <typename T>
void RunDecide(const MaskRule& rule, const at::Tensor& behaviour, const at::Tensor& policy,
               const at::Tensor& advantages, int64_t vocab_size, const DecideFacts& facts, Decisions* out) {
  DecideInput<T> in{behaviour.const_data_ptr<T>(),       policy.const_data_ptr<T>(),
                    advantages.const_data_ptr<T>(),      PointerOrNull<T>(facts.tail_square),
                    PointerOrNull<T>(facts.tail_mass),   behaviour.size(0),
                    static_cast<int>(behaviour.size(1)), vocab_size};
  in.tail_cube = PointerOrNull<T>(facts.tail_cube);
  const DecideOutput<T> result{out->ratio.mutable_data_ptr<T>(), out->divergence.mutable_data_ptr<T>(),
                               out->direction.mutable_data_ptr<T>(), out->flags.mutable_data_ptr<uint8_t>(),
                               out->coefficient.mutable_data_ptr<T>()};
  if (behaviour.is_cuda()) {
    DecideCuda(rule, in, result, CurrentStream(behaviour));
  } else {
    DecideCpu(rule, in, result);
  }
}

std::span<const double> DoublesOf(const at::Tensor& x) {
  return {x.const_data_ptr<double>(), static_cast<size_t>(x.numel())};
}

// The lengths of the responses, or one that holds every token where the rule needs none.
std::vector<int64_t> LengthsOf(const MaskRule& rule, const at::Tensor& lengths, int64_t tokens) {
  if (!lengths.defined()) {
    if (!NeedsLengths(rule)) return {tokens};
    throw Error("lengths", fmt::format("are missing, and scope {} decides by response", NameOf(rule.scope)),
                "pass the number of tokens of each response, in order");
  }
  CheckShape({"lengths", lengths}, {-1});
  if (!at::isIntegralType(lengths.scalar_type(), /*includeBool=*/false)) {
    throw Error("lengths", fmt::format("has dtype {}", c10::toString(lengths.scalar_type())),
                "pass int32 or int64");
  }
  const at::Tensor here = lengths.to(at::kCPU, at::kLong).contiguous();
  const int64_t* data = here.const_data_ptr<int64_t>();
  std::vector<int64_t> all(data, data + here.numel());
  int64_t left = tokens;
  for (const int64_t length : all) {
    if (length < 0 || length > left) {
      throw Error("lengths", fmt::format("do not add up to the {} tokens", tokens),
                  "pass the number of tokens of each response, in order");
    }
    left -= length;
  }
  if (left > 0) {
    throw Error("lengths", fmt::format("leave {} of the {} tokens over", left, tokens),
                "pass the number of tokens of each response, in order");
  }
  return all;
}

// On the CPU in float64: the log-probs of the sampled tokens are all that is read.
Decisions DecideByResponse(const MaskRule& rule, const at::Tensor& behaviour, const at::Tensor& policy,
                           const at::Tensor& advantages, const std::vector<int64_t>& lengths,
                           const at::TensorOptions& options) {
  const auto doubles = [](const at::Tensor& x) { return x.detach().to(at::kCPU, at::kDouble).contiguous(); };
  const at::Tensor mu = doubles(behaviour.select(1, 0)), pi = doubles(policy.select(1, 0)),
                   signs = doubles(advantages);
  const std::vector<TokenDecision> decisions =
      DecideResponses(rule, {DoublesOf(mu), DoublesOf(pi), DoublesOf(signs), lengths});
  const int64_t tokens = advantages.size(0);
  const auto numbers = [&](double TokenDecision::* member) {
    const at::Tensor all = at::empty({tokens}, at::kDouble);
    double* out = all.mutable_data_ptr<double>();
    for (const TokenDecision& decision : decisions) *out++ = decision.*member;
    return all.to(options);
  };
  const at::Tensor flags = at::empty({tokens}, at::kByte);
  uint8_t* flag = flags.mutable_data_ptr<uint8_t>();
  for (const TokenDecision& d : decisions) {
    *flag++ = (d.keep ? kKept : 0) | (d.outside ? kOutside : 0) | (d.outward ? kOutward : 0) |
              (d.missing ? kMissing : 0);
  }
  return {numbers(&TokenDecision::ratio),     numbers(&TokenDecision::divergence),
          numbers(&TokenDecision::direction), at::Tensor(),
          flags.to(options.device()),         numbers(&TokenDecision::coefficient)};
}

// Throws Error where the exact tail lacks a sum.
void CheckExactTail(const MaskRule& rule, const DecideFacts& facts) {
  if (!Predicts(rule.direction) || rule.tail != TailModel::kExact) return;
  constexpr std::string_view kRemedy =
      "pass the sum of {} probabilities outside the support, or choose another tail";
  if (!facts.tail_square.defined()) {
    throw Error("tail_square", "is missing, and the exact tail needs it", fmt::format(kRemedy, "squared"));
  }
  if (rule.direction == Direction::kSecondOrder && !facts.tail_cube.defined()) {
    throw Error("tail_cube", "is missing, and the second order needs it with the exact tail",
                fmt::format(kRemedy, "cubed"));
  }
}

}  // namespace

Decisions Decide(const MaskRule& rule, const at::Tensor& behaviour, const at::Tensor& policy,
                 const at::Tensor& advantages, int64_t vocab_size, const DecideFacts& facts, bool validate) {
  CheckShape({"behaviour", behaviour}, {-1, -1});
  if (behaviour.size(1) < 1) throw Error("behaviour", "has no columns", "column 0 holds the sampled token");
  CheckShape({"policy", policy}, behaviour.sizes());
  const int64_t tokens = behaviour.size(0);
  const std::initializer_list<NamedTensor> per_token = {{"advantages", advantages},
                                                        {"tail_square", facts.tail_square},
                                                        {"tail_cube", facts.tail_cube},
                                                        {"tail_mass", facts.tail_mass}};
  for (const NamedTensor& x : per_token) {
    if (x.tensor.defined()) CheckShape(x, {tokens});
  }
  CheckFloating({"behaviour", behaviour});
  CheckFloating({"policy", policy});
  CheckFloating({"advantages", advantages});
  CheckSameDevice({{"behaviour", behaviour},
                   {"policy", policy},
                   {"advantages", advantages},
                   {"tail_square", facts.tail_square},
                   {"tail_cube", facts.tail_cube},
                   {"tail_mass", facts.tail_mass}});
  if (vocab_size < 1)
    throw Error("vocab_size", fmt::format("is {}", vocab_size), "pass the model's vocabulary size");
  CheckExactTail(rule, facts);
  const bool by_response = rule.scope != Scope::kToken;
  std::vector<int64_t> lengths;
  if (by_response || facts.lengths.defined()) lengths = LengthsOf(rule, facts.lengths, tokens);
  if (validate) {
    CheckSupportLogprobs(behaviour, policy, vocab_size, "behaviour");
    CheckFinite({"advantages", advantages});
    if (facts.tail_square.defined() && rule.tail == TailModel::kExact) {
      CheckTailSquare(facts.tail_square, behaviour, policy);
    }
  }

  const bool wide = behaviour.scalar_type() == at::kDouble && policy.scalar_type() == at::kDouble;
  const auto type = wide ? at::kDouble : at::kFloat;
  const auto options = behaviour.options().dtype(type).requires_grad(false);
  Decisions out;
  if (by_response) {
    out = DecideByResponse(rule, behaviour, policy, advantages, lengths, options);
  } else {
    const auto dense = [&](const at::Tensor& x) {
      return x.defined() ? x.detach().to(type).contiguous() : x;
    };
    for (at::Tensor* x : {&out.ratio, &out.divergence, &out.direction, &out.coefficient}) {
      *x = at::empty({tokens}, options);
    }
    out.flags = at::empty({tokens}, options.dtype(at::kByte));
    const DecideFacts ready{dense(facts.tail_square), dense(facts.tail_cube), dense(facts.tail_mass),
                            at::Tensor()};
    const auto run = [&](const MaskRule& applied) {
      const auto decide = wide ? RunDecide<double> : RunDecide<float>;
      decide(applied, dense(behaviour), dense(policy), dense(advantages), vocab_size, ready, &out);
    };
    run(rule);
    if (rule.outside_budget > 0) run(WithBudgetSpent(rule, out.divergence, out.flags, at::Tensor()));
  }
  out.keep = out.flags.bitwise_and(1).to(at::kBool);
  return out;
}

}  // namespace augur
