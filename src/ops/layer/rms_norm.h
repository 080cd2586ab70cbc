// RMSNorm with autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "ops/layer/fp8_product.h"

namespace augur {

// x [rows, width] float32 or bfloat16, weight [width] of the same dtype.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// x + delta and the norm of that, which on CUDA is one kernel.
std::pair<at::Tensor, at::Tensor> AddRmsNorm(const at::Tensor& x, const at::Tensor& delta,
                                             const at::Tensor& weight, double eps);

// What one call of the forward left for its backward.
struct NormResult {
  at::Tensor sum;      // [rows, width]; x itself where nothing was added
  at::Tensor y;        // [rows, width]
  at::Tensor inverse;  // [rows] float32
};

// The two without autograd, for operators that contain a norm; tensors are contiguous. `delta`, or undefined,
// is added to x first. With `to`, y is left out and goes there, rounded to FP8, on CUDA.
NormResult RmsNormForward(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight, double eps,
                          Fp8Rows* to = nullptr);
// Gradients of the sum and of the weight; `extra` is what reaches the sum otherwise, or undefined.
std::pair<at::Tensor, at::Tensor> RmsNormBackward(const at::Tensor& sum, const at::Tensor& weight,
                                                  const at::Tensor& inverse, const at::Tensor& grad_y,
                                                  const at::Tensor& extra);

// The norm in plain tensor operations, over the last dimension of an x of any shape: the reference of the
// kernels.
at::Tensor RmsNormReference(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace augur
