// The gradient from unnormalised probabilities against the gradient written out in double: rows that stay and
// rows that move, with and without a dense part, and rows that unnormalised probabilities cannot hold.
#include "kernels/head/unnormalised_gradient.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/device.h"

namespace augur {
namespace {

constexpr int kRows = 6, kColumns = 5;
constexpr double kTemperature = 0.8;

template <typename E>
E Rounded(double x) {
  if constexpr (std::is_same_v<E, BFloat16>) {
    return BFloat16::From(static_cast<float>(x));
  } else {
    return static_cast<E>(x);
  }
}

template <typename E>
double Value(E x) {
  if constexpr (std::is_same_v<E, BFloat16>) return static_cast<float>(x);
  return static_cast<double>(x);
}

// Rows of logits with a support, and parts of a gradient in d loss / d z.
template <typename T, typename E>
struct Case {
  int64_t vocab, width;
  std::vector<E> logits;
  std::vector<int32_t> support;
  std::vector<T> support_logits, dense;

  Case(int64_t vocab, int seed) : vocab(vocab), width((vocab + 7) / 8 * 8) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < kRows * width; ++i) logits.push_back(Rounded<E>(3 * normal(random)));
    for (int r = 0; r < kRows; ++r) {
      std::vector<int32_t> ids(vocab);
      for (int64_t j = 0; j < vocab; ++j) ids[j] = static_cast<int32_t>(j);
      std::ranges::shuffle(ids, random);
      for (int c = 0; c < kColumns; ++c) {
        const bool unused = r == 1 && c > 2;
        support.push_back(unused ? -1 : ids[c]);
        support_logits.push_back(unused ? 0 : static_cast<T>(Value(logits[r * width + ids[c]])));
      }
      dense.push_back(r == 3 ? 0 : static_cast<T>(normal(random)));
    }
  }

  // Row r of d loss / d logits.
  std::vector<double> Truth(int r) const {
    std::vector<double> out(width, 0.0);
    double sum = 0;
    for (int64_t j = 0; j < vocab; ++j) sum += std::exp(Value(logits[r * width + j]) / kTemperature);
    for (int64_t j = 0; j < vocab; ++j) {
      out[j] = dense[r] * std::exp(Value(logits[r * width + j]) / kTemperature) / sum / kTemperature;
    }
    out[support[r * kColumns]] -= dense[r] / kTemperature;
    return out;
  }
};

template <typename E>
constexpr ElementType kType = ElementType::kFloat;
template <>
constexpr ElementType kType<double> = ElementType::kDouble;
template <>
constexpr ElementType kType<BFloat16> = ElementType::kBFloat16;

class UnnormalisedGradientTest : public testing::TestWithParam<Device> {
 protected:
  // Compares the rows that `source` names (all where empty) with the truth. Returns whether all rows fitted.
  template <typename T, typename E>
  bool Holds(const Case<T, E>& c, const std::vector<int32_t>& source, double tolerance) {
    const Device device = GetParam();
    DeviceArray<E> logits(device, c.logits);
    DeviceArray<int32_t> support(device, c.support), places(device, source), overflowed(device, {0});
    DeviceArray<T> support_logits(device, c.support_logits), dense(device, c.dense);
    const std::vector<T> zeros(kRows * kColumns);
    DeviceArray<T> log_sum_exp(device, zeros), entropy(device, zeros), mass(device, zeros),
        square(device, zeros), logprobs(device, zeros), reference(device, zeros), factor(device, zeros);
    LogitRows rows{logits.data(),  kType<E>, kRows,        c.width, c.vocab,
                   support.data(), kColumns, kTemperature, 0};
    const RowStats<T> stats{support_logits.data(), log_sum_exp.data(), entropy.data(),   mass.data(),
                            square.data(),         logprobs.data(),    reference.data(), overflowed.data()};
    const UnnormalisedGradient<T> parts{
        log_sum_exp.data(), reference.data(), dense.data(),
        logprobs.data(),    nullptr,          source.empty() ? nullptr : places.data(),
        factor.data()};
    device == Device::kCpu ? RowStatsCpu(rows, stats) : RowStatsCuda(rows, stats, nullptr);
    if (overflowed.ToHost()[0] != 0) return false;
    rows.rows = source.empty() ? kRows : static_cast<int64_t>(source.size());
    device == Device::kCpu ? UnnormalisedGradientCpu(rows, parts)
                           : UnnormalisedGradientCuda(rows, parts, nullptr);
    const auto values = logits.ToHost();
    const auto factors = factor.ToHost();
    for (int64_t i = 0; i < rows.rows; ++i) {
      const auto truth = c.Truth(source.empty() ? static_cast<int>(i) : source[i]);
      const double largest =
          std::abs(*std::ranges::max_element(truth, {}, [](double x) { return std::abs(x); }));
      for (int64_t j = 0; j < c.width; ++j) {
        const double ours = factors[i] * Value(values[i * c.width + j]);
        EXPECT_NEAR(ours, truth[j], tolerance * (std::abs(truth[j]) + 1e-3 * largest)) << i << " " << j;
      }
    }
    return true;
  }

  template <typename T, typename E>
  void HoldsForAllSizes(double tolerance) {
    for (const int64_t vocab : {9, 30, 272, 1001, 20000}) {
      SCOPED_TRACE(vocab);
      const Case<T, E> c(vocab, 1);
      EXPECT_TRUE(Holds(c, {}, tolerance));
      EXPECT_TRUE(Holds(c, {0, 4, 2, 5}, tolerance));  // rows 1 and 3 are left out
      EXPECT_TRUE(Holds(c, {0, 1, 2, 3, 5}, tolerance));
    }
  }
};

TEST_P(UnnormalisedGradientTest, EqualsTheGradientInDouble) {
  HoldsForAllSizes<double, double>(1e-12);
  HoldsForAllSizes<float, float>(2e-5);
  HoldsForAllSizes<float, BFloat16>(5e-3);
}

TEST_P(UnnormalisedGradientTest, SaysWhereARowLiesTooFarAboveItsSupport) {
  for (const double above : {30.0, 200.0}) {
    Case<float, float> c(300, 2);
    int32_t token = 0;  // outside the support of row 2
    const auto* support = c.support.data() + 2 * kColumns;
    while (std::find(support, support + kColumns, token) != support + kColumns) ++token;
    c.logits[2 * c.width + token] = static_cast<float>(above);
    EXPECT_EQ(Holds(c, {}, 2e-5), above < 100);
  }
}

INSTANTIATE_TEST_SUITE_P(All, UnnormalisedGradientTest, testing::ValuesIn(BuiltDevices()), DeviceName);

}  // namespace
}  // namespace augur
