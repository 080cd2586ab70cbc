#include "train/parallel/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace augur {
namespace {

TEST(Shares, EverySampleGoesToOneRankAndTokensBalance) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 101; ++i) lengths.push_back(1 + i * 37 % 60);
  const int64_t all = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  for (const int ranks : {1, 2, 3, 8}) {
    std::vector<int> seen(lengths.size());
    for (const std::vector<size_t>& share : BalancedShares(lengths, ranks)) {
      EXPECT_TRUE(std::ranges::is_sorted(share));
      int64_t tokens = 0;
      for (const size_t place : share) {
        ++seen[place];
        tokens += lengths[place];
      }
      EXPECT_NEAR(static_cast<double>(tokens), static_cast<double>(all) / ranks, 5);
    }
    EXPECT_EQ(std::ranges::count(seen, 1), 101);
  }
}

TEST(Shares, ThereMayBeFewerSamplesThanRanks) {
  const std::vector<int64_t> lengths = {3, 9};
  EXPECT_EQ(BalancedShares(lengths, 3), (std::vector<std::vector<size_t>>{{1}, {0}, {}}));
  EXPECT_EQ(BalancedShares({}, 2), (std::vector<std::vector<size_t>>{{}, {}}));
}

TEST(CutFurther, HalvesTheLongestPieceUntilThereAreEnough) {
  const std::vector<int64_t> lengths = {4, 4, 4, 4, 1};
  std::vector<size_t> cuts = {0, 4, 5};
  CutFurther(lengths, 3, &cuts);
  EXPECT_EQ(cuts, (std::vector<size_t>{0, 2, 4, 5}));
  CutFurther(lengths, 9, &cuts);
  EXPECT_EQ(cuts, (std::vector<size_t>{0, 1, 2, 3, 4, 5}));
  std::vector<size_t> none = {0};
  CutFurther({}, 2, &none);
  EXPECT_EQ(none, (std::vector<size_t>{0}));
}

}  // namespace
}  // namespace augur
