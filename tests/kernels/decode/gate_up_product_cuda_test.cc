// SwiGLU of the products of few tokens against the same in double, with the same roundings of what lies in
// memory.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/decode/gate_up_product.h"
#include "kernels/decode/stored_matrix.h"

namespace augur {
namespace {

struct Case {
  const char* name;
  int tokens, in, width;
};

class GateUpProductCudaTest : public testing::TestWithParam<Case> {};

TEST_P(GateUpProductCudaTest, IsTheProductInDouble) {
  const Case& c = GetParam();
  std::mt19937 random(11);
  const StoredMatrix x(c.tokens, c.in, false, random), weight(2 * c.width, c.in, false, random);
  MatrixOnGpu x_there(x), weight_there(weight);
  // NaN wherever nothing is written, and behind the end what must stay.
  std::vector<BFloat16> before((c.tokens + 1) * c.width, BFloat16::From(std::nanf("")));
  for (int i = 0; i < c.width; ++i) before[c.tokens * c.width + i] = BFloat16::From(7);
  DeviceArray<BFloat16> y(Device::kCuda, before);
  const GateUpProduct product{c.tokens, c.in, c.width, x_there.halves.data(), weight_there.halves.data(),
                              y.data()};
  if (!HasGateUpProductCuda(product)) GTEST_SKIP() << "this GPU has no such kernel";
  GateUpProductCuda(product, nullptr);
  const std::vector<BFloat16> got = y.ToHost();
  double error = 0, norm = 0;
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t j = 0; j < c.width; ++j) {
      double gate = 0, up = 0;
      for (int k = 0; k < c.in; ++k) {
        gate += x.At(t, k) * weight.At(j, k);
        up += x.At(t, k) * weight.At(c.width + j, k);
      }
      const double want = gate / (1 + std::exp(-gate)) * up, is = got[t * c.width + j];
      error += (is - want) * (is - want);
      norm += want * want;
    }
  }
  EXPECT_LT(std::sqrt(error / norm), 0.006);
  for (int i = 0; i < c.width; ++i) EXPECT_EQ(static_cast<float>(got[c.tokens * c.width + i]), 7);
  GateUpProductCuda(product, nullptr);
  const std::vector<BFloat16> again = y.ToHost();
  for (int64_t i = 0; i < static_cast<int64_t>(c.tokens) * c.width; ++i) {
    ASSERT_EQ(again[i].bits, got[i].bits) << "another run gives other bits";
  }
}

// The last two have so many columns that multiprocessors take one large tile each, on 132 of them.
INSTANTIATE_TEST_SUITE_P(Sizes, GateUpProductCudaTest,
                         testing::Values(Case{"one", 1, 256, 64}, Case{"edges", 37, 392, 200},
                                         Case{"full", 64, 1024, 320}, Case{"short", 5, 8, 8},
                                         Case{"long", 16, 2560, 96}, Case{"large", 64, 520, 9728},
                                         Case{"large_edges", 33, 72, 8008}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace augur
