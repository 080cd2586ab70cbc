#include "ops/head/decide.h"

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "kernels/head/decide.h"
#include "ops/checks.h"
#include "ops/device.h"
#include "ops/head/outside_budget.h"

namespace augur {
namespace {

template <typename T>
void RunDecide(const MaskRule& rule, const at::Tensor& behaviour, const at::Tensor& policy,
               const at::Tensor& advantages, int64_t vocab_size, const at::Tensor& tail_square,
               const at::Tensor& tail_mass, Decisions* out) {
  const DecideInput<T> in{behaviour.const_data_ptr<T>(),
                          policy.const_data_ptr<T>(),
                          advantages.const_data_ptr<T>(),
                          tail_square.defined() ? tail_square.const_data_ptr<T>() : nullptr,
                          tail_mass.defined() ? tail_mass.const_data_ptr<T>() : nullptr,
                          behaviour.size(0),
                          static_cast<int>(behaviour.size(1)),
                          vocab_size};
  const DecideOutput<T> result{out->ratio.mutable_data_ptr<T>(), out->divergence.mutable_data_ptr<T>(),
                               out->direction.mutable_data_ptr<T>(), out->flags.mutable_data_ptr<uint8_t>()};
  if (behaviour.is_cuda()) {
    DecideCuda(rule, in, result, CurrentStream(behaviour));
  } else {
    DecideCpu(rule, in, result);
  }
}

}  // namespace

Decisions Decide(const MaskRule& rule, const at::Tensor& behaviour, const at::Tensor& policy,
                 const at::Tensor& advantages, int64_t vocab_size,
                 const std::optional<at::Tensor>& tail_square, bool validate, const at::Tensor& tail_mass) {
  const at::Tensor square = tail_square.value_or(at::Tensor());
  CheckShape({"behaviour", behaviour}, {-1, -1});
  if (behaviour.size(1) < 1) throw Error("behaviour", "has no columns", "column 0 holds the sampled token");
  CheckShape({"policy", policy}, behaviour.sizes());
  CheckShape({"advantages", advantages}, {behaviour.size(0)});
  if (square.defined()) CheckShape({"tail_square", square}, {behaviour.size(0)});
  if (tail_mass.defined()) CheckShape({"tail_mass", tail_mass}, {behaviour.size(0)});
  CheckFloating({"behaviour", behaviour});
  CheckFloating({"policy", policy});
  CheckFloating({"advantages", advantages});
  CheckSameDevice({{"behaviour", behaviour},
                   {"policy", policy},
                   {"advantages", advantages},
                   {"tail_square", square},
                   {"tail_mass", tail_mass}});
  if (vocab_size < 1)
    throw Error("vocab_size", fmt::format("is {}", vocab_size), "pass the model's vocabulary size");
  if (rule.direction == Direction::kPredicted && rule.tail == TailModel::kExact && !square.defined()) {
    throw Error("tail_square", "is missing, and the exact tail needs it",
                "pass the sum of squared probabilities outside the support, or choose another tail");
  }
  if (validate) {
    CheckSupportLogprobs(behaviour, policy, vocab_size, "behaviour");
    CheckFinite({"advantages", advantages});
    if (square.defined() && rule.tail == TailModel::kExact) CheckTailSquare(square, behaviour, policy);
  }

  const bool wide = behaviour.scalar_type() == at::kDouble && policy.scalar_type() == at::kDouble;
  const auto type = wide ? at::kDouble : at::kFloat;
  const auto dense = [&](const at::Tensor& x) { return x.defined() ? x.detach().to(type).contiguous() : x; };
  const auto options = behaviour.options().dtype(type).requires_grad(false);
  const int64_t tokens = behaviour.size(0);
  Decisions out{at::empty({tokens}, options), at::empty({tokens}, options), at::empty({tokens}, options),
                at::Tensor(), at::empty({tokens}, options.dtype(at::kByte))};
  const auto run = [&](const MaskRule& applied) {
    const auto decide = wide ? RunDecide<double> : RunDecide<float>;
    decide(applied, dense(behaviour), dense(policy), dense(advantages), vocab_size, dense(square),
           dense(tail_mass), &out);
  };
  run(rule);
  if (rule.outside_budget > 0) run(WithBudgetSpent(rule, out.divergence, out.flags, at::Tensor()));
  out.keep = out.flags.bitwise_and(1).to(at::kBool);
  return out;
}

}  // namespace augur
