#include "ops/layer/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "kernels/isa.h"
#include "ops/compare_gradients.h"
#include "ops/layer/rms_norm.h"
#include "ops/layer/swiglu.h"

namespace augur {
namespace {

struct Case {
  int64_t heads, kv_heads, head_dim;
  std::vector<int32_t> lengths;
};

const Case kCases[] = {{1, 1, 2, {1}},
                       {4, 2, 32, {22, 1, 7, 64, 65}},
                       {9, 3, 64, {130, 21, 200}},
                       {6, 6, 10, {5, 128, 129}},
                       {16, 1, 80, {33, 300}},
                       {2, 1, 256, {70}},
                       {2, 1, 322, {40}}};

class LayerTest : public IsaTest {};

void CompareWithReference(const Case& c, bool norms, at::ScalarType dtype, double tolerance) {
  const SequenceLayout layout = MakeLayout(c.lengths, c.head_dim);
  const AttentionSettings settings{c.heads, c.kv_heads, c.head_dim, 1e-6};
  std::vector<at::Tensor> inputs = {
      at::randn({layout.positions.size(0), (c.heads + 2 * c.kv_heads) * c.head_dim}).to(dtype)};
  if (norms) {
    for (int i = 0; i < 2; ++i) inputs.push_back((at::randn({c.head_dim}) * 0.1 + 1).to(dtype));
  }
  auto call = [&](auto function) {
    return [=](const std::vector<at::Tensor>& x) {
      const at::Tensor none;
      return function(x[0], norms ? x[1] : none, norms ? x[2] : none, layout, settings);
    };
  };
  ExpectEqual(call(RotaryAttention), call(RotaryAttentionReference), inputs, tolerance);
}

TEST_P(LayerTest, BlockedAttentionEqualsPlainSoftmax) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.head_dim);
    CompareWithReference(c, false, at::kFloat, 2e-5);
    CompareWithReference(c, true, at::kFloat, 2e-5);
    CompareWithReference(c, true, at::kBFloat16, 3e-2);
  }
}

TEST_P(LayerTest, AttentionSurvivesScoresTooLargeForExp) {
  const SequenceLayout layout = MakeLayout({100}, 16);
  const AttentionSettings settings{2, 1, 16, 1e-6};
  const at::Tensor qkv = at::randn({100, 64}) * 100;
  const at::Tensor none;
  EXPECT_LT(RelativeError(RotaryAttention(qkv, none, none, layout, settings),
                          RotaryAttentionReference(qkv, none, none, layout, settings)),
            1e-3);
}

TEST_P(LayerTest, RmsNormEqualsReference) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {96, 77}) {  // a multiple of every vector's width and of none's
      const std::vector<at::Tensor> inputs = {at::randn({37, width}).to(dtype), at::randn({width}).to(dtype)};
      ExpectEqual([](const auto& x) { return RmsNorm(x[0], x[1], 1e-5); },
                  [](const auto& x) { return RmsNormReference(x[0], x[1], 1e-5); }, inputs,
                  dtype == at::kFloat ? 1e-5 : 2e-2);
    }
  }
}

TEST_P(LayerTest, SwigluEqualsReference) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor gate_up = (at::randn({19, 70}) * 20).to(dtype);
    ExpectEqual([](const auto& x) { return Swiglu(x[0]); },
                [](const auto& x) { return SwigluReference(x[0]); }, {gate_up},
                dtype == at::kFloat ? 1e-5 : 2e-2);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, LayerTest, testing::ValuesIn(kIsas), NameOfIsa);

}  // namespace
}  // namespace augur
