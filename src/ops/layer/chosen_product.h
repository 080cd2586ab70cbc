// A decode step's products on a GPU by another of the kernels that cuBLAS offers than the one it takes by
// itself, for sizes at which that was measured to be faster. The choice depends on the sizes alone, never on
// a measurement while the program runs: equal programs give equal bits.
#pragma once

#include <ATen/core/Tensor.h>

namespace augur {

// Whether `on` is on the GPU at which they were measured.
bool HasChosenProducts(const at::Tensor& on);

// out = a b for a [m, k] and b [k, n], a weight transposed; bfloat16, or e4m3 with the scales left out. out
// is of bfloat16 or float32. False, and nothing done, where no other kernel was chosen or cuBLAS does not
// offer it.
bool ChosenProductInto(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

}  // namespace augur
