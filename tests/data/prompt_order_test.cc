#include "data/prompt_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"

namespace augur {
namespace {

TEST(PromptOrder, VisitsEveryPromptOnceAnEpoch) {
  for (const size_t size : {1, 2, 3, 10, 1000}) {
    PromptOrder order(size, 5, true);
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<size_t> seen;
      for (size_t i = 0; i < size; ++i) seen.push_back(order.At(epoch * size + i));
      std::ranges::sort(seen);
      for (size_t i = 0; i < size; ++i) ASSERT_EQ(seen[i], i);
    }
  }
}

TEST(PromptOrder, IsAPureFunctionOfThePosition) {
  PromptOrder straight(100, 7, true);
  std::vector<size_t> all;
  for (uint64_t position = 0; position < 350; ++position) all.push_back(straight.At(position));
  for (const uint64_t position : {349, 0, 120, 99, 100, 299}) {
    EXPECT_EQ(PromptOrder(100, 7, true).At(position), all[position]);
    EXPECT_EQ(straight.At(position), all[position]);
  }
  EXPECT_EQ(PromptOrder(100, 7, true).At((uint64_t{1} << 40) * 100 + 3),
            EpochOrder(100, 7, uint64_t{1} << 40)[3]);
}

TEST(PromptOrder, DiffersBySeedAndEpoch) {
  EXPECT_NE(EpochOrder(100, 7, 0), EpochOrder(100, 7, 1));
  EXPECT_NE(EpochOrder(100, 7, 0), EpochOrder(100, 8, 0));
}

TEST(PromptOrder, MakesEveryPermutationEquallyLikely) {
  std::map<std::vector<size_t>, int> counts;
  constexpr int kDraws = 24000;
  for (int epoch = 0; epoch < kDraws; ++epoch) ++counts[EpochOrder(4, 1, epoch)];
  ASSERT_EQ(counts.size(), 24);
  double chi_square = 0;
  for (const auto& [order, count] : counts) chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 49.7);  // 23 degrees of freedom, p = 0.001
}

TEST(PromptOrder, RunsStraightWithoutShuffle) {
  PromptOrder order(3, 7, false);
  EXPECT_EQ(order.At(2), 2);
  EXPECT_EQ(order.At(3), 0);
  EXPECT_THROW(PromptOrder(0, 7, false), Error);
}

}  // namespace
}  // namespace augur
