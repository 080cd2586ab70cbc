#include "eval/scores.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace augur {
namespace {

TEST(PassAt, IsTheShareOfDrawsWithARightOne) {
  // Every subset of the samples, counted out.
  for (int samples = 1; samples <= 8; ++samples) {
    for (int right = 0; right <= samples; ++right) {
      for (int draw = 1; draw <= samples; ++draw) {
        int all = 0, with_right = 0;
        for (unsigned set = 0; set < (1u << samples); ++set) {
          if (std::popcount(set) != draw) continue;
          ++all;
          with_right += (set & ((1u << right) - 1)) != 0;
        }
        EXPECT_NEAR(PassAt(samples, right, draw), static_cast<double>(with_right) / all, 1e-12);
      }
    }
  }
}

PromptScores Votes(std::vector<std::optional<std::string>> answers, std::vector<bool> right) {
  std::vector<double> scores(right.begin(), right.end());
  return {"s", std::move(right), std::move(scores), std::move(answers)};
}

TEST(MajorityRight, FollowsTheMostFrequentAnswer) {
  EXPECT_TRUE(MajorityRight(Votes({"1", "2", "2"}, {false, true, true})));
  EXPECT_FALSE(MajorityRight(Votes({"1", "1", "2"}, {false, false, true})));
  EXPECT_TRUE(MajorityRight(Votes({"1", "2"}, {true, false}))) << "of equally frequent ones, the first";
  EXPECT_TRUE(MajorityRight(Votes({std::nullopt, std::nullopt, "3"}, {false, false, true})))
      << "abstentions do not vote";
  EXPECT_FALSE(MajorityRight(Votes({std::nullopt, std::nullopt}, {false, false})));
}

TEST(Scores, AreMeansOverPromptsBySource) {
  PromptScores a = Votes({"1", "1", "2", "3"}, {true, true, false, false});
  PromptScores b = Votes({"5", "6", "6", "6"}, {true, false, false, false});
  PromptScores c = Votes({"9", "9", "9", "9"}, {true, true, true, true});
  c.data_source = "t";
  const auto sources = ScoresBySource({a, b, c});
  ASSERT_EQ(sources.size(), 2);
  const SourceScores& s = sources.at("s");
  EXPECT_EQ(s.prompts, 2);
  EXPECT_EQ(s.samples, 4);
  EXPECT_DOUBLE_EQ(s.average, (0.5 + 0.25) / 2);
  EXPECT_DOUBLE_EQ(s.majority, 0.5);
  EXPECT_DOUBLE_EQ(s.pass.at(1), s.average);
  EXPECT_DOUBLE_EQ(s.pass.at(2), (5.0 / 6 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(s.pass.at(4), 1);
  EXPECT_DOUBLE_EQ(ScoresOverall({a, b, c}).average, (0.5 + 0.25 + 1) / 3);
}

TEST(Scores, CountWhatWasAnsweredCutOffScoredAndFailed) {
  PromptScores a = Votes({"1", std::nullopt}, {true, false});
  a.scores = {2, std::nan("")};
  a.tokens = 30;
  a.cut_off = 1;
  a.errors = 1;
  a.figures["length"] = {5, 2};
  PromptScores b = Votes({"1", "2"}, {true, true});
  b.scores = {std::nan(""), std::nan("")};
  b.tokens = 10;
  b.figures["length"] = {7, 1};
  PromptScores failed;
  failed.data_source = "s";
  failed.fault = "why";
  const SourceScores s = ScoresBySource({a, b, failed}).at("s");
  EXPECT_EQ(s.prompts, 2);
  EXPECT_EQ(s.failed, 1);
  EXPECT_EQ(s.errors, 1);
  EXPECT_DOUBLE_EQ(s.answered, (0.5 + 1) / 2);
  EXPECT_DOUBLE_EQ(s.tokens, (15.0 + 5) / 2);
  EXPECT_DOUBLE_EQ(s.cut_off, (0.5 + 0) / 2);
  EXPECT_EQ(s.scored, 1);
  EXPECT_DOUBLE_EQ(s.score, 2);
  EXPECT_EQ(s.figures.at("length").first, 12);
  EXPECT_EQ(s.figures.at("length").second, 3);
  EXPECT_EQ(s.pass.size(), 2u);  // of 1 and of 2
}

}  // namespace
}  // namespace augur
