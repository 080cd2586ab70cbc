#include "train/step/schedule.h"

#include <gtest/gtest.h>

namespace augur {
namespace {

TEST(Schedule, WarmsUpThenFollowsHalfACosine) {
  ScheduleOptions options{.kind = Schedule::kCosine, .lr = 2, .warmup = 4, .total = 14, .final_share = 0.1};
  EXPECT_DOUBLE_EQ(LearningRate(options, 0), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(options, 3), 2);
  EXPECT_DOUBLE_EQ(LearningRate(options, 4), 2);
  EXPECT_DOUBLE_EQ(LearningRate(options, 9), 2 * 0.55);
  EXPECT_DOUBLE_EQ(LearningRate(options, 14), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(options, 99), 0.2);
  options.kind = Schedule::kConstant;
  EXPECT_DOUBLE_EQ(LearningRate(options, 99), 2);
}

TEST(Schedule, StaysAtItsRateWhereNothingIsLeftAfterWarmup) {
  const ScheduleOptions options{
      .kind = Schedule::kCosine, .lr = 2, .warmup = 4, .total = 4, .final_share = 0};
  EXPECT_DOUBLE_EQ(LearningRate(options, 1), 1);
  EXPECT_DOUBLE_EQ(LearningRate(options, 4), 2);
  EXPECT_DOUBLE_EQ(LearningRate({.kind = Schedule::kConstant, .lr = 2, .warmup = 0, .total = 9}, 0), 2);
}

}  // namespace
}  // namespace augur
