// RMSNorm with autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace augur {

// x [rows, width] float32 or bfloat16, weight [width] of the same dtype.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The same in plain tensor operations, over the last dimension of an x of any shape: the reference of the CPU
// kernel, and what runs on other devices.
at::Tensor RmsNormReference(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace augur
