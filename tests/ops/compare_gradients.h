// Compares an operator with its reference: values and the gradients of every input.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "ops/layer/attention.h"

namespace augur {

inline SequenceLayout MakeLayout(const std::vector<int32_t>& lengths, int64_t head_dim) {
  std::vector<int32_t> bounds = {0};
  std::vector<at::Tensor> positions;
  int32_t longest = 0;
  for (const int32_t length : lengths) {
    bounds.push_back(bounds.back() + length);
    positions.push_back(at::arange(length, at::kInt));
    longest = std::max(longest, length);
  }
  const at::Tensor angle =
      at::outer(at::arange(longest, at::kFloat), at::arange(head_dim / 2, at::kFloat) * 0.1);
  return {at::tensor(bounds), at::cat(positions), longest, angle.cos(), angle.sin()};
}

// Largest difference relative to the largest value of the truth.
inline double RelativeError(const at::Tensor& got, const at::Tensor& truth) {
  return ((got - truth).abs().max() / truth.abs().max().clamp_min(1e-30)).item<double>();
}

using Call = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// Values and gradients of every input agree within the tolerance.
inline void ExpectEqual(const Call& got, const Call& truth, const std::vector<at::Tensor>& inputs,
                        double tolerance) {
  auto run = [&](const Call& call) {
    std::vector<at::Tensor> leaves;
    for (const at::Tensor& x : inputs) leaves.push_back(x.detach().clone().requires_grad_(true));
    const at::Tensor out = call(leaves);
    const at::Tensor direction = (at::arange(out.numel(), at::kFloat) * 0.7).sin().view(out.sizes());
    std::vector<at::Tensor> results = torch::autograd::grad({out}, leaves, {direction.to(out.scalar_type())});
    results.push_back(out.detach());
    return results;
  };
  const auto a = run(got), b = run(truth);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_LT(RelativeError(a[i].to(at::kFloat), b[i].to(at::kFloat)), tolerance) << "result " << i;
  }
}

}  // namespace augur
