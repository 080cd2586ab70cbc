#include "model/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace augur {
namespace {

constexpr int64_t kExperts = 6, kHidden = 32, kInner = 16, kRank = 8, kTokens = 5;

// Gradients of the experts' tensors, whole weights or adapters, where all tokens go to experts 1 and 4.
std::vector<at::Tensor> ExpertGradients(at::Device device, at::ScalarType type, bool adapters, bool fp8) {
  const auto make = [&](at::IntArrayRef sizes, at::ScalarType as, bool trained) {
    return (at::randn(sizes) * 0.3).to(device, as).detach().requires_grad_(trained);
  };
  LayerWeights layer;
  layer[kRouter].weight = make({kExperts, kHidden}, type, false);
  std::vector<at::Tensor> trained;
  for (const auto& [slot, out, in] :
       {std::tuple(kExpertsGateUp, 2 * kInner, kHidden), {kExpertsDown, kHidden, kInner}}) {
    layer[slot].weight = make({kExperts, out, in}, type, !adapters);
    if (!adapters) {
      trained.push_back(layer[slot].weight);
      continue;
    }
    const LowRank part{"experts", 0, make({kExperts, kRank, in}, at::kFloat, true),
                       make({kExperts, out, kRank}, at::kFloat, true), 0.5};
    layer[slot].adapters = {part};
    trained.insert(trained.end(), {part.a, part.b});
  }
  const MoeConfig config{kExperts, 2, kInner, true};
  const at::Tensor replay = at::tensor({1, 4}, at::kLong).expand({kTokens, 2}).contiguous().to(device);
  const at::Tensor x = make({kTokens, kHidden}, type, true);
  const MoeOutput out = MoeForward(config, layer, x, replay, {.fp8 = fp8});
  return torch::autograd::grad({out.hidden.sum()}, trained);
}

void ExpectZeroForExpertsWithoutTokens(at::Device device, at::ScalarType type) {
  for (const bool adapters : {false, true}) {
    for (const bool fp8 : {false, true}) {
      if (fp8 && type == at::kFloat) continue;
      SCOPED_TRACE(testing::Message() << (adapters ? "adapters" : "weights") << (fp8 ? ", FP8" : ""));
      for (const at::Tensor& gradient : ExpertGradients(device, type, adapters, fp8)) {
        ASSERT_TRUE(gradient.defined());
        for (int64_t e = 0; e < kExperts; ++e) {
          EXPECT_EQ(gradient[e].ne(0).any().item<bool>(), e == 1 || e == 4) << "expert " << e;
        }
      }
    }
  }
}

TEST(Moe, ExpertsWithoutTokensHaveZeroGradient) {
  ExpectZeroForExpertsWithoutTokens(at::kCPU, at::kFloat);
  ExpectZeroForExpertsWithoutTokens(at::kCPU, at::kBFloat16);
}

TEST(MoeCuda, ExpertsWithoutTokensHaveZeroGradient) {
  ExpectZeroForExpertsWithoutTokens(at::kCUDA, at::kFloat);
  ExpectZeroForExpertsWithoutTokens(at::kCUDA, at::kBFloat16);
}

}  // namespace
}  // namespace augur
