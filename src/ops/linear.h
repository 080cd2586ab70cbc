// Matrix products of a layer with the choices that training offers: inputs computed again in the backward
// instead of kept, and FP8.
#pragma once

#include <ATen/core/Tensor.h>

namespace augur {

struct LinearOptions {
  // Keep what the input is made from, and make it again for the backward. Costs a pass over it, no product.
  bool recompute = false;
  // Round both factors to FP8, scaled per tensor so that the largest magnitude is the format's largest: e4m3
  // for inputs and weights, e5m2 for the gradient coming back, in all three products of forward and backward.
  // They run on FP8 units where the GPU has them and the sizes are multiples of 16; elsewhere the rounded
  // values are multiplied in float32.
  bool fp8 = false;
};

// x weight' + bias; x [rows, in], weight [out, in], bias [out] or undefined.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const LinearOptions& options);

// The same of RmsNorm(x, norm, eps), and of Swiglu(x).
at::Tensor NormLinear(const at::Tensor& x, const at::Tensor& norm, double eps, const at::Tensor& weight,
                      const at::Tensor& bias, const LinearOptions& options);
at::Tensor SwigluLinear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const LinearOptions& options);

}  // namespace augur
