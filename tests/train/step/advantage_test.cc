#include "train/step/advantage.h"

#include <gtest/gtest.h>

#include "train/step/schedule.h"

namespace augur {
namespace {

TEST(Advantage, OfAnEqualGroupIsExactlyZeroWhateverRoundingDoes) {
  std::vector<ScoredResponse> group(7, {.reward = 0.1, .group = 3, .tokens = 5});  // their sum is not 0.7
  for (const auto kind : {AdvantageKind::kGrpo, AdvantageKind::kGrpoNoStd, AdvantageKind::kRloo}) {
    for (const double advantage : ComputeAdvantages(kind, group)) EXPECT_EQ(advantage, 0.0);
  }
  for (const bool equal : InEqualGroup(group)) EXPECT_TRUE(equal);
}

TEST(Advantage, OfAResponseAloneIsItsReward) {
  const ScoredResponse alone{.reward = 0.5, .group = 0, .tokens = 4};
  EXPECT_EQ(ComputeAdvantages(AdvantageKind::kGrpo, {&alone, 1})[0], 0.5);
  EXPECT_FALSE(InEqualGroup({&alone, 1})[0]);
}

TEST(Advantage, GroupsNeedNotStandTogether) {
  const std::vector<ScoredResponse> mixed = {{1, 0, 1}, {5, 1, 1}, {0, 0, 1}, {7, 1, 1}};
  const std::vector<double> expected = {0.5, -1, -0.5, 1};
  EXPECT_EQ(ComputeAdvantages(AdvantageKind::kGrpoNoStd, mixed), expected);
}

TEST(Overlong, PenaltyFallsLinearlyWithinTheBuffer) {
  EXPECT_EQ(OverlongPenalty(80, 100, 20, 1), 0);
  EXPECT_EQ(OverlongPenalty(90, 100, 20, 1), -0.5);
  EXPECT_EQ(OverlongPenalty(100, 100, 20, 2), -2);
  EXPECT_EQ(OverlongPenalty(200, 100, 20, 1), -1);
  EXPECT_EQ(OverlongPenalty(100, 100, 0, 1), 0);
}

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

}  // namespace
}  // namespace augur
