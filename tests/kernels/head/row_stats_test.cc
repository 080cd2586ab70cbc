// How a thread on a GPU sums up its part of a row, followed on the CPU: rows whose support was overwritten.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/head/row_stats_math.h"

namespace augur {
namespace {

constexpr float kNothing = -1e30f;

struct Tail {
  double log_sum, mean;  // over the tokens outside the support: log of the sum, mean of z - max
};

Tail TrueTail(const std::vector<float>& logits, int begin, int end, double temperature) {
  double most = -INFINITY, sum = 0, weighted = 0;
  const auto outside = [&](int i) { return (i < begin || i >= end) && std::isfinite(logits[i]); };
  for (int i = 0; i < static_cast<int>(logits.size()); ++i) {
    if (outside(i)) most = std::max(most, logits[i] / temperature);
  }
  for (int i = 0; i < static_cast<int>(logits.size()); ++i) {
    if (!outside(i)) continue;
    const double y = logits[i] / temperature - most;
    sum += std::exp(y);
    weighted += std::exp(y) * y;
  }
  return {most + std::log(sum), weighted / sum};
}

// The groups shared out to as many threads as a block has, one group after the other.
Tail SweptTail(std::vector<float> logits, int begin, int end, double temperature) {
  constexpr int kThreads = 256;
  std::fill(logits.begin() + begin, logits.begin() + end, kNothing);
  const auto vocab = static_cast<int>(logits.size());
  SoftmaxSums<float> all;
  for (int thread = 0; thread < kThreads; ++thread) {
    ThreadSums<float> mine{static_cast<float>(kLog2E / temperature), kNothing / 2};
    for (int first = thread * kSweepGroup; first < vocab; first += kThreads * kSweepGroup) {
      float group[kSweepGroup];
      for (int i = 0; i < kSweepGroup; ++i) group[i] = first + i < vocab ? logits[first + i] : -INFINITY;
      mine.Add(group);
    }
    all.Merge(mine.InNaturalUnits());
  }
  return {all.max + std::log(all.sum), all.weighted / all.sum};
}

TEST(RowStats, ThreadsWhoseWholeShareIsSupportAddNothing) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const int vocab : {30, 272, 1000, 9000}) {
    for (const double temperature : {0.7, 0.9, 1.0, 1.3}) {
      for (int begin = 0; begin + 24 < vocab && begin < 160; begin += 8) {
        SCOPED_TRACE(testing::Message()
                     << vocab << " tokens, support from " << begin << ", T " << temperature);
        std::vector<float> logits(vocab);
        for (float& z : logits) z = normal(random) * (begin % 16 == 0 ? 3.0f : 20.0f);
        if (begin % 24 == 0) std::fill(logits.begin() + vocab / 2, logits.end() - 1, -INFINITY);
        const Tail truth = TrueTail(logits, begin, begin + 21, temperature);
        const Tail swept = SweptTail(logits, begin, begin + 21, temperature);
        EXPECT_NEAR(swept.log_sum, truth.log_sum, 2e-5);
        EXPECT_NEAR(swept.mean, truth.mean, 2e-5);
      }
    }
  }
}

}  // namespace
}  // namespace augur
