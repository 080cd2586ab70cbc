#include "reward/countdown.h"

#include <gtest/gtest.h>

namespace augur {
namespace {

double ScoreOf(const std::string& response, std::vector<int> numbers, int target) {
  return ScoreCountdown(response, Json{{"numbers", numbers}, {"target", target}});
}

TEST(Countdown, AcceptsAnyWayOfWritingTheExpression) {
  for (const char* expression :
       {"(15 + 5) / 5 - 2", "((15) + (5)) / 5-2 = 2", "(15+5)\\div 5 - 2",
        "\\left(15 + 5\\right) \u00F7 5 \u2212 2", "$(15+5)/5-2=2$", "`(15+5)/5-2`", "**(15+5)/5-2**",
        "-2 + (15+5)/5", "+(15+5)/5 - 2.", "\\((15 + 5)/5 - 2\\)"}) {
    for (const std::string frame : {"<answer> # </answer>", "<answer>1</answer><answer>#</answer> ok",
                                    "Answer: #", "**Answer:** #", "First 15+5.\n#\n", "\\boxed{#}"}) {
      std::string response = frame;
      response.replace(response.find('#'), 1, expression);
      EXPECT_EQ(ScoreOf(response, {2, 15, 5, 5}, 2), 1.0) << response;
    }
  }
}

TEST(Countdown, ComputesWithExactFractions) {
  EXPECT_EQ(ScoreOf("Answer: 8/(3-8/3)", {8, 3, 8, 3}, 24), 1.0);
  EXPECT_EQ(ScoreOf("Answer: 6/(1-3/4)", {6, 1, 3, 4}, 24), 1.0);
  EXPECT_EQ(ScoreOf("Answer: 7/3/7*6", {7, 3, 7, 6}, 2), 1.0);
  EXPECT_EQ(ScoreOf("Answer: 1/3*3 - 49", {1, 3, 3, 49}, -48), 1.0);
  EXPECT_EQ(ScoreOf("Answer: 10/3", {10, 3}, 3), 0.0);
  EXPECT_EQ(ScoreOf("Answer: 2-3-4", {2, 3, 4}, -5), 1.0);
  EXPECT_EQ(ScoreOf("Answer: 2*-3 + 7", {2, 3, 7}, 1), 1.0);
}

TEST(Countdown, DemandsEachNumberExactlyOnce) {
  EXPECT_EQ(ScoreOf("Answer: 5+5", {5, 5}, 10), 1.0);
  EXPECT_EQ(ScoreOf("Answer: 5*2", {5, 5}, 10), 0.0);
  EXPECT_EQ(ScoreOf("Answer: 5+5", {5}, 10), 0.0);
  EXPECT_EQ(ScoreOf("Answer: 5+5", {5, 5, 1}, 10), 0.0);
  EXPECT_EQ(ScoreOf("Answer: 12+3", {1, 2, 3}, 15), 0.0);
}

TEST(Countdown, RefusesWhatIsNotAnExpression) {
  for (const char* bad : {"",      "1 2",   "1+",      "/1+2",     "(1+2",
                          "1+2)",  "()",    "1(2)",    "1//2",     "1**2",
                          "1^2",   "1+2=4", "1+2=3=3", "=3",       "1+2 because",
                          "1.0+2", "0x1+2", "1/0+2",   "abs(1)+2", "__import__('os')",
                          "1e0+2"}) {
    EXPECT_EQ(ScoreOf(std::string("Answer: ") + bad, {1, 2}, 3), 0.0) << bad;
  }
}

TEST(Countdown, ScoresZeroBeyondItsLimitsInsteadOfWrappingAround) {
  EXPECT_EQ(ScoreOf("Answer: 4294967296*4294967296*0", {0}, 0), 0.0);
  EXPECT_EQ(
      ScoreCountdown("Answer: 9223372036854775807+1",
                     Json::parse(R"({"numbers":[9223372036854775807,1],"target":-9223372036854775808})")),
      0.0);
  EXPECT_EQ(ScoreOf("Answer: " + std::string(3000, '(') + "1" + std::string(1000, ')'), {1}, 1), 0.0);
  EXPECT_EQ(ScoreOf("Answer: " + std::string(1000, '(') + "1" + std::string(1000, ')'), {1}, 1), 1.0);
  EXPECT_EQ(ScoreOf("Answer: " + std::string(1000001, '-') + "1", {1}, 1), 0.0);
}

TEST(Countdown, ReadsThePuzzleAsAnObjectOrAsItsText) {
  const char* text = R"({"numbers": [1, "2"], "target": 3.0})";
  EXPECT_EQ(ScoreCountdown("Answer: 1+2", Json::parse(text)), 1.0);
  EXPECT_EQ(ScoreCountdown("Answer: 1+2", Json(text)), 1.0);
}

}  // namespace
}  // namespace augur
