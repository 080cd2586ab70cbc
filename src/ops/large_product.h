// Products so large that every way to cut them up fills the GPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace augur {

// out = a b, or out += a b: [m, k] by [k, n]. out may be float32 where a and b have 16 bits.
void LargeProduct(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add);

// The same by cuBLAS with a choice of its own; false where it has none to make, and nothing was done.
//
// At the power limit the tile of 256 x 128 takes the least energy, so that the GPU keeps a higher clock than with
// the 320 x 128 that cuBLAS prefers; docs/performance.md has figures. For small products what matters is that
// tiles fill the GPU evenly, which cuBLAS knows best.
bool LargeProductCuda(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add);

}  // namespace augur
