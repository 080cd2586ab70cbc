// Products of rows by their group's matrix, as experts' are, on GPUs that have them.
#pragma once

#include <ATen/core/Tensor.h>

namespace augur {

// Whether grouped products take rows and matrices [groups, ..., ...] of these sizes.
bool HasGroupedProduct(const at::Tensor& rows, const at::Tensor& matrices);

// The gradient [groups, out, in] of the groups' weights from that of the outputs [N, out] and the inputs [N,
// in], those of group g ending before ends[g] (int32 [groups]). Zero for a group without rows.
at::Tensor GroupedWeightGradient(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& ends);

}  // namespace augur
