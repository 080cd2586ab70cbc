#include "ops/gemm_rows.h"

#include <gtest/gtest.h>

namespace augur {
namespace {

TEST(GemmRows, FillTheWavesOfTheGpu) {
  // 26 x 10 tiles of 128 x 256 on 132 multiprocessors.
  EXPECT_EQ(RowsToMultiply(3584, 2560, 132), 3328);
  EXPECT_EQ(RowsToMultiply(4096, 4096, 132), 4096);
}

TEST(GemmRows, AreAtLeastHalfOfThoseThatWait) {
  for (int64_t waiting = 1; waiting < 5000; ++waiting) {
    const int64_t rows = RowsToMultiply(waiting, 2560, 132);
    EXPECT_LE(rows, waiting);
    EXPECT_GE(2 * rows, waiting);
  }
}

TEST(GemmRows, AreAllOnTheCpu) { EXPECT_EQ(RowsToMultiply(1729, 2560, 0), 1729); }

}  // namespace
}  // namespace augur
