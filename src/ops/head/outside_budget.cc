#include "ops/head/outside_budget.h"

#include "kernels/head/decide.h"
#include "mask/outside_budget.h"

namespace augur {

MaskRule WithBudgetSpent(const MaskRule& rule, const at::Tensor& divergence, const at::Tensor& flags,
                         const at::Tensor& weights) {
  at::Tensor counted = flags.bitwise_and(kMissing).eq(0);
  if (weights.defined()) counted = counted.logical_and(weights.ne(0));
  const at::Tensor values = divergence.masked_select(counted).to(at::kCPU, at::kDouble).contiguous();
  const double* first = values.const_data_ptr<double>();
  MaskRule spent = rule;
  spent.delta = DeltaForBudget({first, first + values.numel()}, rule.outside_budget);
  spent.outside_budget = 0;
  return spent;
}

LossTerms WithBudgetSpent(const LossTerms& terms, const at::Tensor& divergence, const at::Tensor& flags,
                          const at::Tensor& weights) {
  LossTerms spent = terms;
  spent.rule = WithBudgetSpent(terms.rule, divergence, flags, weights);
  return spent;
}

}  // namespace augur
