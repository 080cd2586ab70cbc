// A decoder layer's second half as one operator: residual, norm, gate and up product, SwiGLU, down product.
#pragma once

#include <ATen/core/Tensor.h>

namespace augur {

struct GatedMlpWeights {
  at::Tensor norm;     // [hidden]
  at::Tensor gate_up;  // [2 * inner, hidden]
  at::Tensor down;     // [hidden, inner]
};

// With middle = x + delta, middle + down(SwiGLU(gate_up(RmsNorm(middle)))); x and delta [rows, hidden]. What
// NormLinear and SwigluLinear (ops/layer/linear.h) with `recompute` make of it, in fewer passes over memory:
// the backward computes norm and SwiGLU again within the kernels of their gradients, which round to FP8, too,
// and adds the residual's gradient in the norm's. In FP8 the product of gate and up is rounded as rollouts
// round it, before its scales are multiplied in (kernels/layer/product_scale.h).
at::Tensor GatedMlp(const at::Tensor& x, const at::Tensor& delta, const GatedMlpWeights& weights, double eps,
                    bool fp8);

// Whether it takes tensors like x.
bool HasGatedMlp(const at::Tensor& x);

}  // namespace augur
