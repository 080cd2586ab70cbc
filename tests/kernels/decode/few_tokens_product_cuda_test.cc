// Products of few tokens against the same in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/decode/few_tokens_product.h"
#include "kernels/decode/stored_matrix.h"

namespace augur {
namespace {

struct Case {
  const char* name;
  int tokens, in, out;
};

// NaN wherever nothing is written, and a row behind the end that must stay.
constexpr float kBehind = 7;
std::vector<BFloat16> Unwritten(int tokens, int out) {
  std::vector<BFloat16> y(static_cast<size_t>(tokens + 1) * out, BFloat16::From(std::nanf("")));
  std::fill(y.end() - out, y.end(), BFloat16::From(kBehind));
  return y;
}

std::vector<uint16_t> BitsOf(const std::vector<BFloat16>& values) {
  std::vector<uint16_t> bits;
  for (const BFloat16 value : values) bits.push_back(value.bits);
  return bits;
}

std::vector<double> ProductInDouble(const StoredMatrix& x, const StoredMatrix& weight, int64_t tokens,
                                    int64_t out) {
  const std::vector<double> a(x.halves.begin(), x.halves.end());
  const std::vector<double> b(weight.halves.begin(), weight.halves.end());
  const int64_t in = x.width;
  std::vector<double> y;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < out; ++j) {
      double sums[4] = {};
      for (int64_t k = 0; k < in; ++k) sums[k % 4] += a[t * in + k] * b[j * in + k];
      y.push_back(sums[0] + sums[1] + sums[2] + sums[3]);
    }
  }
  return y;
}

class FewTokensProductCudaTest : public testing::TestWithParam<Case> {};

TEST_P(FewTokensProductCudaTest, IsTheProductInDouble) {
  const Case& c = GetParam();
  std::mt19937 random(11);
  const StoredMatrix x(c.tokens, c.in, false, random), weight(c.out, c.in, false, random);
  MatrixOnGpu x_there(x), weight_there(weight);
  FewTokensProduct product{c.tokens, c.in, c.out, x_there.halves.data(), weight_there.halves.data()};
  if (!HasFewTokensProductCuda(product)) GTEST_SKIP() << "this GPU has no such kernel";
  const std::vector<double> want = ProductInDouble(x, weight, c.tokens, c.out);
  const double rounding = 0.001 * std::sqrt(c.in);  // of sums in float32
  DeviceArray<BFloat16> y(Device::kCuda, Unwritten(c.tokens, c.out));
  product.y = y.data();
  FewTokensProductCuda(product, nullptr);
  const std::vector<BFloat16> got = y.ToHost();
  size_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(got[i] - want[i]);
    if (!(error <= std::abs(want[i]) / 250 + rounding)) ++wrong;  // NaN is wrong, too
  }
  EXPECT_EQ(wrong, 0) << "of " << want.size();
  for (size_t i = want.size(); i < got.size(); ++i) ASSERT_EQ(static_cast<float>(got[i]), kBehind);
  FewTokensProductCuda(product, nullptr);
  EXPECT_EQ(BitsOf(y.ToHost()), BitsOf(got)) << "another run gives other bits";
}

TEST_P(FewTokensProductCudaTest, ATokenAloneHasTheSameBits) {
  const Case& c = GetParam();
  std::mt19937 random(12);
  MatrixOnGpu x(StoredMatrix(c.tokens, c.in, false, random));
  MatrixOnGpu weight(StoredMatrix(c.out, c.in, false, random));
  FewTokensProduct all{c.tokens, c.in, c.out, x.halves.data(), weight.halves.data()};
  if (!HasFewTokensProductCuda(all)) GTEST_SKIP() << "this GPU has no such kernel";
  DeviceArray<BFloat16> y(Device::kCuda, Unwritten(c.tokens, c.out));
  all.y = y.data();
  FewTokensProductCuda(all, nullptr);
  const std::vector<uint16_t> together = BitsOf(y.ToHost());
  for (const int token : {0, c.tokens / 2, c.tokens - 1}) {
    DeviceArray<BFloat16> row(Device::kCuda, Unwritten(1, c.out));
    FewTokensProduct alone = all;
    alone.tokens = 1;
    alone.x += static_cast<int64_t>(token) * c.in;
    alone.y = row.data();
    FewTokensProductCuda(alone, nullptr);
    const std::vector<uint16_t> bits = BitsOf(row.ToHost());
    EXPECT_TRUE(std::equal(bits.begin(), bits.end() - c.out, together.begin() + token * c.out))
        << "token " << token;
  }
}

// The first three are those of a model with four billion weights. Widths of fewer steps than a cluster has
// blocks leave some of these without a part.
INSTANTIATE_TEST_SUITE_P(Sizes, FewTokensProductCudaTest,
                         testing::Values(Case{"qkv", 33, 2560, 6144}, Case{"out", 64, 4096, 2560},
                                         Case{"down", 64, 9728, 2560}, Case{"one", 1, 256, 64},
                                         Case{"few", 7, 1032, 328}, Case{"edges", 37, 392, 200},
                                         Case{"short", 5, 8, 8}, Case{"empty_parts", 64, 320, 160},
                                         Case{"full", 64, 1024, 960}, Case{"uneven_parts", 17, 4040, 96}),
                         [](const auto& info) { return info.param.name; });

// Each product reads what the one before it wrote, where an earlier one may still be reading.
TEST(FewTokensProductChainCudaTest, WaitsForTheProductsBeforeIt) {
  constexpr int kTokens = 64, kWidth = 1536, kProducts = 20, kRuns = 20;
  std::mt19937 random(13);
  const StoredMatrix x(kTokens, kWidth, false, random);
  StoredMatrix weight(kWidth, kWidth, false, random);
  const float scale = 1 / std::sqrt(static_cast<float>(kWidth));
  for (BFloat16& value : weight.halves) value = BFloat16::From(static_cast<float>(value) * scale);
  MatrixOnGpu x_there(x), weight_there(weight);
  const std::vector<BFloat16> unwritten = Unwritten(kTokens, kWidth);
  DeviceArray<BFloat16> even(Device::kCuda, unwritten), odd(Device::kCuda, unwritten);
  FewTokensProduct product{kTokens, kWidth, kWidth, x_there.halves.data(), weight_there.halves.data()};
  if (product.y = even.data(); !HasFewTokensProductCuda(product)) GTEST_SKIP() << "no such kernel";
  const auto run = [&](int i, void* stream) {
    product.x = i == 0 ? x_there.halves.data() : i % 2 == 0 ? odd.data() : even.data();
    product.y = i % 2 == 0 ? even.data() : odd.data();
    FewTokensProductCuda(product, stream);
  };
  for (int i = 0; i < kProducts; ++i) {
    run(i, nullptr);
    even.ToHost();  // waits
  }
  const std::vector<uint16_t> want_even = BitsOf(even.ToHost()), want_odd = BitsOf(odd.ToHost());
  RunGraphOnGpu(kRuns, [&](void* stream) {
    for (int i = 0; i < kProducts; ++i) run(i, stream);
  });
  EXPECT_EQ(BitsOf(even.ToHost()), want_even);
  EXPECT_EQ(BitsOf(odd.ToHost()), want_odd);
}

}  // namespace
}  // namespace augur
