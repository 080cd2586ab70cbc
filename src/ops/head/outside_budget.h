// A rule's outside_budget over the tokens of one call.
#pragma once

#include <ATen/core/Tensor.h>

#include "mask/loss_terms.h"

namespace augur {

// The rule with the delta that leaves its outside_budget of these tokens outside, and no budget. Tokens
// without a support or of weight 0 (weights may be undefined) do not count. On CUDA this waits for the
// device.
MaskRule WithBudgetSpent(const MaskRule& rule, const at::Tensor& divergence, const at::Tensor& flags,
                         const at::Tensor& weights);
// The same with the terms' rule.
LossTerms WithBudgetSpent(const LossTerms& terms, const at::Tensor& divergence, const at::Tensor& flags,
                          const at::Tensor& weights);

}  // namespace augur
