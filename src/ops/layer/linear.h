// Matrix products of a layer with the choices that training offers: inputs computed again in the backward
// instead of kept, and FP8.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ops/layer/low_rank.h"

namespace augur {

struct LinearOptions {
  // Keep what the input is made from, and make it again for the backward. Costs a pass over it, no product.
  bool recompute = false;
  // Round both factors to e4m3 as rollouts do (fp8_product.h): inputs with a scale per token, weights with
  // one per output channel. In the backward the input's gradient is such a product too, of gradients with a
  // scale per token. The weight's, whose sums run over tokens, is one where a GPU has FP8 units, with a power
  // of two per channel (RoundColumnsForSums); elsewhere, where that gains nothing, it is computed in the type
  // of its factors.
  bool fp8 = false;
};

// x weight' + bias; x [rows, in], weight [out, in], bias [out] or undefined. `low_rank` is part of the
// weight, which has no gradient of its own then; its factors have.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const LinearOptions& options, const std::vector<LowRank>& low_rank = {});

// The gradients of x and of the weight from that of the result.
at::Tensor LinearInputGradient(const at::Tensor& grad, const at::Tensor& weight, bool fp8);
at::Tensor LinearWeightGradient(const at::Tensor& grad, const at::Tensor& x, bool fp8);

// The same of RmsNorm(x, norm, eps), and of Swiglu(x).
at::Tensor NormLinear(const at::Tensor& x, const at::Tensor& norm, double eps, const at::Tensor& weight,
                      const at::Tensor& bias, const LinearOptions& options,
                      const std::vector<LowRank>& low_rank = {});
at::Tensor SwigluLinear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const LinearOptions& options, const std::vector<LowRank>& low_rank = {});

}  // namespace augur
