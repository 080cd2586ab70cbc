#include "train/step/batch.h"

#include <gtest/gtest.h>

#include <numeric>

namespace augur {
namespace {

TEST(MinibatchSizes, AreNearEqualAndNoneIsARemainder) {
  EXPECT_EQ(MinibatchSizes(49, 16), (std::vector<size_t>{13, 12, 12, 12}));
  EXPECT_EQ(MinibatchSizes(64, 16), (std::vector<size_t>{16, 16, 16, 16}));
  EXPECT_EQ(MinibatchSizes(17, 16), (std::vector<size_t>{9, 8}));
  EXPECT_EQ(MinibatchSizes(3, 16), (std::vector<size_t>{3}));
  EXPECT_TRUE(MinibatchSizes(0, 16).empty());
  for (size_t groups = 1; groups < 200; ++groups) {
    for (const size_t most : {1, 7, 16, 64}) {
      const std::vector<size_t> sizes = MinibatchSizes(groups, most);
      EXPECT_EQ(sizes.size(), (groups + most - 1) / most);
      EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), size_t{0}), groups);
      EXPECT_LE(sizes.front(), most);
      EXPECT_LE(sizes.front() - sizes.back(), 1u);
    }
  }
}

}  // namespace
}  // namespace augur
