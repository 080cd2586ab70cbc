// The operators on a GPU against their references on the CPU in float32.
#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/layer/swiglu.h"
#include "ops/compare_gradients.h"
#include "ops/device.h"
#include "ops/layer/fp8_product.h"
#include "ops/layer/gated_mlp.h"
#include "ops/layer/linear.h"
#include "ops/layer/rms_norm.h"
#include "ops/layer/swiglu.h"
#include "ops/typed_data.h"

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

GatedMlpWeights WeightsOf(const std::vector<at::Tensor>& x) { return {x[2], x[3], x[4]}; }

// The same half of a layer by operators of one step each.
at::Tensor PlainMlp(const std::vector<at::Tensor>& x, const LinearOptions& products) {
  const at::Tensor middle = x[0] + x[1];
  const at::Tensor gate_up = NormLinear(middle, x[2], 1e-5, x[3], {}, products);
  return middle + SwigluLinear(gate_up, x[4], {}, products);
}

std::vector<at::Tensor> MlpInputs(int64_t rows, int64_t hidden, int64_t inner) {
  const double small = 1 / std::sqrt(static_cast<double>(hidden));
  return {Random({rows, hidden}), Random({rows, hidden}), Random({hidden}, 0.1, 1),
          Random({2 * inner, hidden}, small), Random({hidden, inner}, small)};
}

TEST(OperatorsCuda, GatedMlpEqualsReference) {
  for (const auto& [rows, hidden, inner] :
       std::vector<std::tuple<int64_t, int64_t, int64_t>>{{5, 64, 48}, {37, 70, 35}, {300, 256, 1536}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << hidden << " x " << inner);
    ExpectSameOnGpu([](const auto& x) { return GatedMlp(x[0], x[1], WeightsOf(x), 1e-5, false); },
                    [](const auto& x) {
                      const at::Tensor middle = x[0] + x[1];
                      const at::Tensor normal = RmsNormReference(middle, x[2], 1e-5);
                      return middle + at::linear(SwigluReference(at::linear(normal, x[3])), x[4]);
                    },
                    MlpInputs(rows, hidden, inner));
  }
}

// In FP8 it is rounded before its scales are multiplied in, where one step each rounds it after: some values
// have another FP8 neighbour.
TEST(OperatorsCuda, GatedMlpInFp8IsCloseToItsSteps) {
  for (const auto& [rows, hidden, inner] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {33, 64, 48}, {500, 256, 1536}, {64, 128, 9728}, {1100, 64, 80}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << hidden << " x " << inner);
    const auto run = [&](const Call& call) {
      std::vector<at::Tensor> leaves;
      at::manual_seed(5);
      for (const at::Tensor& x : MlpInputs(rows, hidden, inner)) {
        leaves.push_back(x.to(at::kCUDA, at::kBFloat16).requires_grad_(true));
      }
      const at::Tensor out = call(leaves), direction = (1e-3 * at::randn(out.sizes())).to(out.options());
      std::vector<at::Tensor> found = torch::autograd::grad({out}, leaves, {direction});
      found.push_back(out.detach());
      return found;
    };
    const auto fused = run([](const auto& x) { return GatedMlp(x[0], x[1], WeightsOf(x), 1e-5, true); });
    const auto plain = run([](const auto& x) { return PlainMlp(x, {.recompute = true, .fp8 = true}); });
    for (size_t i = 0; i < fused.size(); ++i) {
      const at::Tensor truth = plain[i].to(at::kFloat);
      EXPECT_LT(((fused[i].to(at::kFloat) - truth).norm() / truth.norm()).item<double>(), 0.03) << i;
    }
  }
}

TEST(OperatorsCuda, SwigluBackwardMakesItsOutputAgainAndRoundsTheGradient) {
  for (const int64_t width : {35, 1536, 9728}) {
    SCOPED_TRACE(width);
    constexpr int64_t kRows = 19;
    const at::Tensor gate_up = (2 * at::randn({kRows, 2 * width})).to(at::kCUDA, at::kBFloat16);
    const at::Tensor grad_out = at::randn({kRows, width}).to(at::kCUDA, at::kBFloat16);
    const at::Tensor leaf = gate_up.clone().requires_grad_(true), out = Swiglu(leaf);
    const at::Tensor expected = torch::autograd::grad({out}, {leaf}, {grad_out})[0];
    const at::Tensor grad = at::empty_like(gate_up), again = at::empty_like(grad_out);
    const Fp8Rows rounded = EmptyFp8Rows(gate_up, gate_up.sizes());
    SwigluBackwardCuda<BFloat16>(kRows, width, ConstData<BFloat16>(gate_up), {},
                                 ConstData<BFloat16>(grad_out),
                                 {Data<BFloat16>(grad), Data<BFloat16>(again), Data<uint8_t>(rounded.values),
                                  Data<float>(rounded.scale)},
                                 CurrentStream(gate_up));
    EXPECT_TRUE(grad.equal(expected));
    EXPECT_TRUE(again.equal(out.detach()));
    const Fp8Rows alone = RoundRowsToFp8(expected);
    EXPECT_TRUE(at::equal(rounded.values.view(at::kByte), alone.values.view(at::kByte)));
    EXPECT_TRUE(at::equal(rounded.scale, alone.scale));
  }
}

// Sums over tokens of factors rounded to FP8, of any number of tokens; divided among calls they are the same
// but for the rounding of the sums, though one token's gradient is a thousand times the others'.
TEST(OperatorsCuda, WeightGradientInFp8DoesNotDependOnTheSplit) {
  for (const int64_t rows : {1, 37, 1000, 4096}) {
    SCOPED_TRACE(testing::Message() << rows << " rows");
    at::Tensor grad = at::randn({rows, 192}).to(at::kCUDA, at::kBFloat16);
    const at::Tensor x = at::randn({rows, 320}).to(at::kCUDA, at::kBFloat16);
    grad[0].mul_(1000);
    const auto gradient = [](const at::Tensor& g, const at::Tensor& y) {
      return Fp8WeightGradient(g, y).to(at::kFloat);
    };
    const at::Tensor whole = gradient(grad, x), truth = grad.to(at::kFloat).t().matmul(x.to(at::kFloat));
    EXPECT_LT(((whole - truth).norm() / truth.norm()).item<double>(), 0.05);
    const int64_t half = rows / 2;
    if (half == 0) continue;
    const at::Tensor parts = gradient(grad.narrow(0, 0, half), x.narrow(0, 0, half)) +
                             gradient(grad.narrow(0, half, rows - half), x.narrow(0, half, rows - half));
    EXPECT_LT(((whole - parts).norm() / truth.norm()).item<double>(), 0.01);
  }
}

TEST(OperatorsCuda, WeightGradientInFp8KeepsWhatIsNotFinite) {
  for (const double odd : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    at::Tensor grad = at::randn({64, 32}).to(at::kCUDA, at::kBFloat16);
    grad[3][5] = odd;
    const at::Tensor found = Fp8WeightGradient(grad, at::randn({64, 48}).to(at::kCUDA, at::kBFloat16));
    EXPECT_FALSE(found[5].isfinite().any().item<bool>());
    EXPECT_TRUE(found[4].isfinite().all().item<bool>());
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
                                            {8, 4, 128, false, {150, 1, 40}},
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

// Few rows and many take kernels of their own.
TEST(OperatorsCuda, SwigluRoundsToFp8AsItsOutputDoes) {
  for (const int64_t rows : {3, 1100}) {
    for (const int64_t width : {35, 1536, 9728}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << width);
      const at::Tensor x = (2 * at::randn({rows, 2 * width})).to(at::kCUDA, at::kBFloat16);
      const Fp8Rows found = SwigluToFp8(x), expected = RoundRowsToFp8(Swiglu(x));
      EXPECT_TRUE(at::equal(found.values.view(at::kByte), expected.values.view(at::kByte)));
      EXPECT_TRUE(at::equal(found.scale, expected.scale));
    }
  }
}

// The same bytes and scales, those of a column of zeros and of tiny numbers too.
TEST(OperatorsCuda, ColumnsRoundToFp8AsTransposedRowsDo) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {1, 1}, {5, 3}, {64, 64}, {300, 130}, {304, 136}, {2560, 400}, {3, 48, 96}, {2, 33, 70}}) {
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
