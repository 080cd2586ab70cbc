// The operators on a GPU beside their references on the CPU in float32.
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "ops/compare_gradients.h"
#include "ops/fp8_product.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace augur {
namespace {

constexpr double kFloatTolerance = 2e-5, kBfloat16Tolerance = 2e-2;

// Gives the call's inputs to the GPU in `dtype`; results come back as float32.
Call OnGpu(const Call& call, at::ScalarType dtype) {
  return [=](const std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor> there;
    for (const at::Tensor& x : inputs) there.push_back(x.to(at::kCUDA, dtype));
    return call(there).to(at::kCPU, at::kFloat);
  };
}

// Inputs that bfloat16 holds exactly.
at::Tensor Random(at::IntArrayRef shape, double scale = 1, double shift = 0) {
  return at::randn(shape).mul(scale).add(shift).to(at::kBFloat16).to(at::kFloat);
}

void ExpectSameOnGpu(const Call& kernel, const Call& reference, const std::vector<at::Tensor>& inputs) {
  ExpectEqual(OnGpu(kernel, at::kFloat), reference, inputs, kFloatTolerance);
  ExpectEqual(OnGpu(kernel, at::kBFloat16), reference, inputs, kBfloat16Tolerance);
}

TEST(OperatorsCuda, RmsNormEqualsReference) {
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 8}, {37, 96}, {5, 70}, {700, 576}, {300, 2560}, {9, 10240}, {3, 4001}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << width);
    ExpectSameOnGpu([](const auto& x) { return RmsNorm(x[0], x[1], 1e-5); },
                    [](const auto& x) { return RmsNormReference(x[0], x[1], 1e-5); },
                    {Random({rows, width}), Random({width}, 0.1, 1)});
  }
}

TEST(OperatorsCuda, AddRmsNormEqualsReference) {
  const auto weigh = [](const std::pair<at::Tensor, at::Tensor>& pair) {
    return at::cat({pair.first, pair.second}, 1);
  };
  for (const auto& [rows, width] : std::vector<std::pair<int64_t, int64_t>>{{37, 96}, {5, 70}, {300, 2560}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << width);
    ExpectSameOnGpu([=](const auto& x) { return weigh(AddRmsNorm(x[0], x[1], x[2], 1e-5)); },
                    [=](const auto& x) {
                      const at::Tensor sum = x[0] + x[1];
                      return weigh({sum, RmsNormReference(sum, x[2], 1e-5)});
                    },
                    {Random({rows, width}), Random({rows, width}), Random({width}, 0.1, 1)});
  }
}

TEST(OperatorsCuda, SwigluEqualsReference) {
  for (const auto& [rows, width] :
       std::vector<std::pair<int64_t, int64_t>>{{19, 35}, {300, 1536}, {64, 9728}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << width);
    ExpectSameOnGpu([](const auto& x) { return Swiglu(x[0]); },
                    [](const auto& x) { return SwigluReference(x[0]); }, {Random({rows, 2 * width}, 5)});
  }
}

struct AttentionCase {
  int64_t heads, kv_heads, head_dim;
  bool norms;
  std::vector<int32_t> lengths;
};

TEST(OperatorsCuda, RotaryAttentionEqualsReference) {
  const std::vector<AttentionCase> cases = {{4, 2, 32, true, {22, 1, 7, 64, 65}},
                                            {9, 3, 64, false, {130, 21, 200}},
                                            {32, 8, 128, true, {300, 33}},
                                            {16, 1, 80, true, {33, 70}},
                                            // cuDNN's kernels, in bfloat16
                                            {4, 2, 128, true, {1500, 700, 2100, 1}},
                                            {9, 3, 64, false, {2048, 513, 1, 1600, 90}}};
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(testing::Message() << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim);
    const SequenceLayout layout = MakeLayout(c.lengths, c.head_dim);
    SequenceLayout there = layout;
    for (at::Tensor* x : {&there.cu_seqlens, &there.positions, &there.cos, &there.sin}) *x = x->cuda();
    const AttentionSettings settings{c.heads, c.kv_heads, c.head_dim, 1e-6};
    std::vector<at::Tensor> inputs = {
        Random({layout.positions.size(0), (c.heads + 2 * c.kv_heads) * c.head_dim})};
    if (c.norms) {
      for (int i = 0; i < 2; ++i) inputs.push_back(Random({c.head_dim}, 0.1, 1));
    }
    const auto call = [&](auto function, const SequenceLayout& where) {
      return [=, norms = c.norms](const std::vector<at::Tensor>& x) {
        const at::Tensor none;
        return function(x[0], norms ? x[1] : none, norms ? x[2] : none, where, settings);
      };
    };
    ExpectEqual(OnGpu(call(RotaryAttention, there), at::kBFloat16), call(RotaryAttentionReference, layout),
                inputs, 3e-2);
    ExpectEqual(OnGpu(call(RotaryAttention, there), at::kFloat), call(RotaryAttentionReference, layout),
                inputs, 1e-3);
  }
}

// The same bytes and scales, those of a column of zeros and of tiny numbers too.
TEST(OperatorsCuda, ColumnsRoundToFp8AsTransposedRowsDo) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {1, 1}, {5, 3}, {64, 64}, {300, 130}, {2560, 400}, {3, 48, 96}, {2, 33, 70}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << shape << " " << dtype);
      at::Tensor x = at::randn(shape).to(at::kCUDA, dtype);
      x.select(-1, 0).zero_();
      if (shape.back() > 2) x.select(-1, 2).mul_(1e-36);
      const Fp8Rows columns = RoundColumnsToFp8(x), rows = RoundRowsToFp8(x.transpose(-1, -2));
      EXPECT_TRUE(at::equal(columns.values.view(at::kByte), rows.values.view(at::kByte)));
      EXPECT_TRUE(at::equal(columns.scale, rows.scale));
    }
  }
}

}  // namespace
}  // namespace augur
