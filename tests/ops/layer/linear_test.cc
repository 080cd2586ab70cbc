#include "ops/layer/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "kernels/isa.h"
#include "ops/compare_gradients.h"
#include "ops/head/linear_policy_loss.h"
#include "ops/head/log_probs.h"
#include "ops/layer/product.h"
#include "ops/layer/swiglu.h"

namespace augur {
namespace {

constexpr int64_t kRows = 37, kIn = 48, kOut = 72;

// Products of bfloat16 by every instruction set, held to the same factors multiplied in float64: sums are
// exact to float32 and rounded once.
class BfloatProductTest : public IsaTest {};

at::Tensor Wide(const at::Tensor& x) { return x.to(at::kDouble); }

TEST_P(BfloatProductTest, LinearLayerWithGradients) {
  const std::vector<at::Tensor> inputs = {at::randn({kRows, kIn}).to(at::kBFloat16),
                                          at::randn({kOut, kIn}).to(at::kBFloat16),
                                          at::randn({kOut}).to(at::kBFloat16)};
  for (const bool recompute : {false, true}) {
    ExpectEqual(
        [&](const auto& x) { return Linear(x[0], x[1], x[2], {.recompute = recompute}); },
        [](const auto& x) { return at::linear(Wide(x[0]), Wide(x[1]), Wide(x[2])).to(at::kBFloat16); },
        inputs, 8e-3);
  }
}

TEST_P(BfloatProductTest, SumsAreRoundedOnce) {
  const at::Tensor a = at::randn({kRows, 512}).to(at::kBFloat16),
                   b = at::randn({512, kOut}).to(at::kBFloat16);
  const at::Tensor truth = Wide(a).matmul(Wide(b));
  // Half a unit in the last of eight bits, and what float32 sums lose where terms cancel.
  EXPECT_TRUE((Wide(Product(a, b)) - truth).abs().le(truth.abs() / 256 + 1e-4).all().item<bool>());
}

TEST_P(BfloatProductTest, HeadWithGradients) {
  constexpr int64_t kVocab = 90;
  const at::Tensor ids = at::arange(kRows, at::kInt).unsqueeze(1);
  HeadOptions options;
  options.logits.vocab_size = kVocab;
  options.logits.validate = false;
  for (const int64_t chunk : {0, 16}) {
    options.chunk = chunk;
    ExpectEqual(
        [&](const auto& x) { return ComputeLogProbs({x[0], x[1], {}}, ids, options).support; },
        [&](const auto& x) {
          const at::Tensor logits = Wide(x[0]).matmul(Wide(x[1]).t());
          return at::log_softmax(logits, 1).gather(1, ids.to(at::kLong)).to(at::kFloat);
        },
        {(at::randn({kRows, kIn}) * 0.2).to(at::kBFloat16), at::randn({kVocab, kIn}).to(at::kBFloat16)},
        2e-2);
  }
}

TEST_P(BfloatProductTest, Swiglu) {
  for (const int64_t width : {5, 16, 40}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      ExpectEqual([](const auto& x) { return Swiglu(x[0]); },
                  [&](const auto& x) { return SwigluReference(Wide(x[0])).to(type); },
                  {(2 * at::randn({9, 2 * width})).to(type)}, type == at::kFloat ? 1e-5 : 1e-2);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, BfloatProductTest, testing::ValuesIn(kIsas), NameOfIsa);

}  // namespace
}  // namespace augur
