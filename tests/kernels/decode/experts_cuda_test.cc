// Experts over few tokens against the same in double, with the same roundings of what lies in memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "kernels/decode/experts.h"
#include "kernels/decode/stored_matrix.h"

namespace augur {
namespace {

struct Case {
  const char* name;
  int tokens, experts, per_token, hidden, width;
  bool fp8 = false;
  bool crowded = false;  // every token wants the same experts
};

// The routes of random logits, on the GPU, and what they should be.
struct Routing {
  explicit Routing(const Case& c, bool normalise = true) : shape(c) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (int t = 0; t < c.tokens; ++t) {
      for (int e = 0; e < c.experts; ++e) {
        const float want =
            c.crowded ? 20.0f * static_cast<float>(e % 7 == 3) - static_cast<float>(e) / 64 : 0;
        logits.push_back(BFloat16::From(normal(random) + want));
      }
    }
    const int64_t choices = static_cast<int64_t>(c.tokens) * c.per_token;
    chosen = std::make_unique<DeviceArray<int32_t>>(Device::kCuda, std::vector<int32_t>(choices, -1));
    weights = std::make_unique<DeviceArray<BFloat16>>(Device::kCuda, std::vector<BFloat16>(choices));
    places = std::make_unique<DeviceArray<uint8_t>>(
        Device::kCuda, std::vector<uint8_t>(ExpertPlacesStride(c.tokens) * c.experts, 0xee));
    record = std::make_unique<DeviceArray<uint8_t>>(Device::kCuda,
                                                    std::vector<uint8_t>(c.tokens * (c.per_token + 3), 0xee));
    routes = {c.tokens, c.experts, c.per_token, chosen->data(), weights->data(), places->data()};
    routes.record = record->data();
    routes.record_stride = c.per_token + 3;
    DeviceArray<BFloat16> there(Device::kCuda, logits);
    RouteTokensCuda(there.data(), normalise, routes, nullptr);
    found = chosen->ToHost();
    found_weights = weights->ToHost();
  }
  Case shape;
  std::vector<BFloat16> logits;
  std::unique_ptr<DeviceArray<int32_t>> chosen;
  std::unique_ptr<DeviceArray<BFloat16>> weights;
  std::unique_ptr<DeviceArray<uint8_t>> places, record;
  ExpertRoutes routes;
  std::vector<int32_t> found;
  std::vector<BFloat16> found_weights;
};

class ExpertsCudaTest : public testing::TestWithParam<Case> {};

TEST_P(ExpertsCudaTest, TokensGoToTheirMostProbableExperts) {
  const Case& c = GetParam();
  for (const bool normalise : {false, true}) {
    const Routing routing(c, normalise);
    const std::vector<uint8_t> places = routing.places->ToHost(), record = routing.record->ToHost();
    for (int t = 0; t < c.tokens; ++t) {
      std::vector<double> p;
      for (int e = 0; e < c.experts; ++e) p.push_back(routing.logits[t * c.experts + e]);
      const double largest = *std::ranges::max_element(p);
      double sum = 0, kept = 0;
      for (double& x : p) sum += x = std::exp(x - largest);
      std::vector<int> order(c.experts);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](int a, int b) { return p[a] > p[b]; });
      for (int k = 0; k < c.per_token; ++k) kept += p[order[k]];
      for (int k = 0; k < c.per_token; ++k) {
        const int at = t * c.per_token + k;
        EXPECT_EQ(routing.found[at], order[k]) << "token " << t << " choice " << k;
        EXPECT_EQ(record[t * (c.per_token + 3) + k], order[k] % 256) << "token " << t << " choice " << k;
        const double want = p[order[k]] / (normalise ? kept : sum);
        EXPECT_NEAR(routing.found_weights[at], want, 0.004 * want) << "token " << t << " choice " << k;
      }
      EXPECT_EQ(record[t * (c.per_token + 3) + c.per_token], 0xee);  // nothing behind them
      for (int e = 0; e < c.experts; ++e) {
        const auto place = std::find(order.begin(), order.begin() + c.per_token, e) - order.begin();
        const int64_t noted = places[e * ExpertPlacesStride(c.tokens) + t];
        EXPECT_EQ(noted, place < c.per_token ? place + 1 : 0) << "token " << t << " expert " << e;
      }
    }
  }
}

// Both products and the sum, every element of them.
TEST_P(ExpertsCudaTest, ProductsAreThoseInDouble) {
  if (!HasExpertKernelsCuda()) GTEST_SKIP() << "this GPU has no such kernels";
  const Case& c = GetParam();
  std::mt19937 random(9);
  const Routing routing(c);
  const StoredMatrix x(c.tokens, c.hidden, c.fp8, random);
  const StoredMatrix up(static_cast<int64_t>(c.experts) * 2 * c.width, c.hidden, c.fp8, random);
  const int64_t choices = static_cast<int64_t>(c.tokens) * c.per_token;
  const BFloat16 nan = BFloat16::From(std::nanf(""));
  MatrixOnGpu x_there(x), up_there(up);
  DeviceArray<BFloat16> inner(Device::kCuda, std::vector<BFloat16>(choices * c.width, nan));
  ExpertProduct product{.in = c.hidden, .out = 2 * c.width};
  product.by_token = product.gated = true;
  product.x = x_there.data();
  product.x_scale = x_there.scales();
  product.weights = up_there.data();
  product.weight_scale = up_there.scales();
  product.y = inner.data();
  ExpertProductCuda(routing.routes, product, nullptr);
  const std::vector<BFloat16> got = inner.ToHost();
  double error = 0, norm = 0;
  for (int64_t i = 0; i < choices; ++i) {
    const int64_t expert = routing.found[i], token = i / c.per_token;
    for (int j = 0; j < c.width; ++j) {
      double gate = 0, by = 0;
      for (int k = 0; k < c.hidden; ++k) {
        gate += x.At(token, k) * up.At(expert * 2 * c.width + j, k);
        by += x.At(token, k) * up.At(expert * 2 * c.width + c.width + j, k);
      }
      const double want = gate / (1 + std::exp(-gate)) * by, is = got[i * c.width + j];
      error += (is - want) * (is - want);
      norm += want * want;
    }
  }
  EXPECT_LT(std::sqrt(error / norm), 0.006);

  const StoredMatrix rows(choices, c.width, c.fp8, random);
  const StoredMatrix down(static_cast<int64_t>(c.experts) * c.hidden, c.width, c.fp8, random);
  MatrixOnGpu rows_there(rows), down_there(down);
  DeviceArray<BFloat16> out(Device::kCuda, std::vector<BFloat16>(choices * c.hidden, nan));
  DeviceArray<BFloat16> mixed(Device::kCuda, std::vector<BFloat16>(int64_t{c.tokens} * c.hidden, nan));
  ExpertProduct back{.in = c.width, .out = c.hidden};
  back.x = rows_there.data();
  back.x_scale = rows_there.scales();
  back.weights = down_there.data();
  back.weight_scale = down_there.scales();
  back.y = out.data();
  ExpertProductCuda(routing.routes, back, nullptr);
  MixExpertsCuda(routing.routes, c.hidden, out.data(), mixed.data(), nullptr);
  const std::vector<BFloat16> sums = mixed.ToHost();
  error = norm = 0;
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int j = 0; j < c.hidden; ++j) {
      double want = 0;
      for (int64_t i = t * c.per_token; i < (t + 1) * c.per_token; ++i) {
        double sum = 0;
        for (int k = 0; k < c.width; ++k) {
          sum += rows.At(i, k) * down.At(int64_t{routing.found[i]} * c.hidden + j, k);
        }
        want += sum * routing.found_weights[i];
      }
      const double is = sums[t * c.hidden + j];
      error += (is - want) * (is - want);
      norm += want * want;
    }
  }
  EXPECT_LT(std::sqrt(error / norm), 0.006);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, ExpertsCudaTest,
    testing::Values(Case{"one", 1, 8, 2, 64, 64}, Case{"tile", 64, 16, 4, 64, 128},
                    Case{"edges", 37, 12, 3, 72, 40}, Case{"crowded", 150, 14, 2, 72, 40, false, true},
                    Case{"many_experts", 20, 200, 8, 64, 16}, Case{"qwen3", 64, 16, 4, 256, 96},
                    Case{"fp8_tile", 64, 16, 4, 64, 128, true}, Case{"fp8_edges", 37, 12, 3, 80, 48, true},
                    Case{"fp8_crowded", 150, 14, 2, 80, 48, true, true},
                    Case{"fp8_qwen3", 64, 16, 4, 256, 96, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace augur
