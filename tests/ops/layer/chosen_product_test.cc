// Products by a chosen kernel of cuBLAS against those of its own choice.
#include "ops/layer/chosen_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

namespace augur {
namespace {

const auto kGpu = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);

// A [m, k] b [k, n] by both; out is NaN before. False where there is no choice for these sizes.
bool ExpectSame(const at::Tensor& a, const at::Tensor& b, at::ScalarType out_type) {
  const at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options().dtype(out_type));
  out.fill_(std::nan(""));
  if (!ChosenProductInto(out, a, b)) return false;
  at::Tensor want;
  if (a.scalar_type() == at::kFloat8_e4m3fn) {
    const at::Tensor one = at::ones({}, a.options().dtype(at::kFloat));
    want = at::_scaled_mm(a, b, one, one, {}, {}, out_type, /*use_fast_accum=*/true);
  } else {
    want = out_type == at::kFloat ? at::mm(a, b, out_type) : at::mm(a, b);
  }
  want = want.to(at::kFloat);
  const double error = (out.to(at::kFloat) - want).norm().item<double>() / want.norm().item<double>();
  EXPECT_LT(error, out_type == at::kFloat ? 1e-5 : 4e-3);
  return true;
}

TEST(ChosenProduct, OtherSizesAndDevicesAreLeftToTorch) {
  const at::Tensor a = at::ones({64, 2560}, at::kBFloat16), b = at::ones({6144, 2560}, at::kBFloat16);
  EXPECT_FALSE(ChosenProductInto(at::empty({64, 6144}, at::kBFloat16), a, b.t()));
}

TEST(ChosenProductCuda, DecodeProductsAreThoseOfTorch) {
  if (!HasChosenProducts(at::empty({1}, kGpu))) GTEST_SKIP() << "chosen for another GPU";
  int found = 0;
  for (const int64_t tokens : {48, 64, 256}) {
    for (const auto& [out, in] :
         std::vector<std::pair<int64_t, int64_t>>{{6144, 2560}, {2560, 4096}, {19456, 2560}, {2560, 9728}}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, " << out << " x " << in);
      const at::Tensor x = at::randn({tokens, in}, kGpu), weight = at::randn({out, in}, kGpu);
      found += ExpectSame(x, weight.t(), at::kBFloat16);
      found += ExpectSame(x.to(at::kFloat8_e4m3fn), weight.to(at::kFloat8_e4m3fn).t(), at::kBFloat16);
    }
    found += ExpectSame(at::randn({tokens, 2560}, kGpu), at::randn({151936, 2560}, kGpu).t(), at::kFloat);
  }
  EXPECT_GE(found, 13);  // of 15 in the table
}

}  // namespace
}  // namespace augur
