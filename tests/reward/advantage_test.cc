#include "reward/advantage.h"

#include <gtest/gtest.h>

#include <cmath>

#include "message_of.h"

namespace augur {
namespace {

TEST(Advantage, OfAnEqualGroupIsExactlyZeroWhateverRoundingDoes) {
  std::vector<ScoredResponse> group(7, {.reward = 0.1, .group = 3, .tokens = 5});  // their sum is not 0.7
  for (const std::string_view name : AdvantageNames()) {
    for (const double advantage : ComputeAdvantages(name, group)) EXPECT_EQ(advantage, 0.0) << name;
  }
  for (const bool equal : InEqualGroup(group)) EXPECT_TRUE(equal);
}

TEST(Advantage, OfAResponseAloneIsItsReward) {
  const ScoredResponse alone{.reward = 0.5, .group = 0, .tokens = 4};
  EXPECT_EQ(ComputeAdvantages("grpo", {&alone, 1})[0], 0.5);
  EXPECT_FALSE(InEqualGroup({&alone, 1})[0]);
}

TEST(Advantage, GroupsNeedNotStandTogether) {
  const std::vector<ScoredResponse> mixed = {{1, 0, 1}, {5, 1, 1}, {0, 0, 1}, {7, 1, 1}};
  const std::vector<double> expected = {0.5, -1, -0.5, 1};
  EXPECT_EQ(ComputeAdvantages("grpo_no_std", mixed), expected);
}

TEST(Advantage, OfAResponseThatIsNotScoredIsZeroAndOthersDoNotSeeIt) {
  const double none = std::nan("");
  const std::vector<ScoredResponse> with = {{1, 0, 3}, {none, 0, 50}, {0, 0, 2}, {none, 1, 9}, {4, 1, 1}};
  const std::vector<ScoredResponse> without = {{1, 0, 3}, {0, 0, 2}};
  for (const std::string_view name : AdvantageNames()) {
    const std::vector<double> mixed = ComputeAdvantages(name, with);
    EXPECT_EQ(mixed[1], 0.0) << name;
    EXPECT_EQ(mixed[3], 0.0) << name;
    if (name == "reinforce_pp") continue;  // normalised over the batch, with the last one
    const std::vector<double> scored = ComputeAdvantages(name, without);
    EXPECT_EQ(mixed[0], scored[0]) << name;
    EXPECT_EQ(mixed[2], scored[1]) << name;
    EXPECT_EQ(mixed[4], 0.0) << name;  // the only one of its group that is scored
  }
  const std::vector<ScoredResponse> alone = {{1, 0, 3}, {0, 0, 2}, {none, 0, 50}};
  const std::vector<double> whitened = ComputeAdvantages("reinforce_pp", alone);
  EXPECT_EQ(whitened[0], ComputeAdvantages("reinforce_pp", without)[0]);
  EXPECT_EQ(whitened[2], 0.0);
  EXPECT_EQ(InEqualGroup(with), (std::vector<bool>{false, false, false, true, true}));
}

TEST(Advantage, AnUnknownNameIsAnErrorThatNamesTheNearest) {
  EXPECT_NE(MessageOf([] { FindAdvantage("grop"); }).find("did you mean 'grpo'"), std::string::npos);
}

TEST(Overlong, PenaltyFallsLinearlyWithinTheBuffer) {
  EXPECT_EQ(OverlongPenalty(80, 100, 20, 1), 0);
  EXPECT_EQ(OverlongPenalty(90, 100, 20, 1), -0.5);
  EXPECT_EQ(OverlongPenalty(100, 100, 20, 2), -2);
  EXPECT_EQ(OverlongPenalty(200, 100, 20, 1), -1);
  EXPECT_EQ(OverlongPenalty(100, 100, 0, 1), 0);
}

TEST(Advantage, EstimatorsAgreeWithTheirFormulas) {
  const std::vector<ScoredResponse> group = {{1, 0, 2}, {0, 0, 6}, {0, 0, 1}, {3, 0, 3}};
  const double mean = 1, deviation = std::sqrt((0 + 1 + 1 + 4) / 3.0);
  const auto expect = [&](const char* name, std::vector<double> expected) {
    const std::vector<double> found = ComputeAdvantages(name, group);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(found[i], expected[i], 1e-9) << name << " " << i;
  };
  expect("grpo", {0, (0 - mean) / (deviation + 1e-6), -1 / (deviation + 1e-6), 2 / (deviation + 1e-6)});
  expect("grpo_no_std", {0, -1, -1, 2});
  expect("dr_grpo", {0, -1, -1, 2});
  expect("rloo", {0, -4.0 / 3, -4.0 / 3, 8.0 / 3});
  // Twelve tokens carry 0, -1, -1 and 2: their mean is -1/12.
  const double over = -1.0 / 12;
  const double squares = 2 * over * over + 7 * (1 + over) * (1 + over) + 3 * (2 - over) * (2 - over);
  const double scale = 1 / std::sqrt(squares / 11 + 1e-8);
  expect("reinforce_pp", {-over * scale, (-1 - over) * scale, (-1 - over) * scale, (2 - over) * scale});
}

}  // namespace
}  // namespace augur
