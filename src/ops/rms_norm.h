// RMSNorm with autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace augur {

// x [rows, width] float32 or bfloat16, weight [width] of the same dtype.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// x + delta and the norm of that, which on CUDA is one kernel.
std::pair<at::Tensor, at::Tensor> AddRmsNorm(const at::Tensor& x, const at::Tensor& delta,
                                             const at::Tensor& weight, double eps);

// The norm in plain tensor operations, over the last dimension of an x of any shape: the reference of the
// kernels.
at::Tensor RmsNormReference(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace augur
