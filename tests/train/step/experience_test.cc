#include "train/step/experience.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/load.h"
#include "reward/advantage.h"

namespace augur {
namespace {

class ExperienceTest : public testing::Test {
 protected:
  ExperienceTest() {
    config_.model.path = AUGUR_SOURCE_DIR "/models/tiny";
    config_.data.train = {"task:sort:count=20:numbers=3"};
    config_.reward.verifier = "exact";
    config_.rollout.prompts = 4;
    config_.rollout.group = 3;
    config_.rollout.max_tokens = 6;
    config_.rollout.support = 4;
    config_.run.seed = 11;
    config_.log.console = false;
  }

  Experience Make(uint64_t* position) {
    const Scorer scorer = MakeScorer(config_.reward);
    return ExperienceMaker(config_, text_, Prompts(), engine_, scorer).Make(1, position);
  }
  const TokenizedPrompts& Prompts() {
    if (prompts_.prompts.empty()) prompts_ = LoadPrompts(text_, config_.data, config_.data.train, {});
    return prompts_;
  }

  RlConfig config_;
  const Model model_ = LoadModel(AUGUR_SOURCE_DIR "/models/tiny", at::kFloat, at::kCPU);
  Engine engine_{model_, {.precision = RolloutPrecision::kFp32}};
  const ModelText text_ = ModelText::FromDirectory(AUGUR_SOURCE_DIR "/models/tiny", {});
  TokenizedPrompts prompts_;
};

TEST_F(ExperienceTest, GroupsFollowTheOrderOfPromptsFromThePosition) {
  config_.reward.overlong_buffer = 3;
  config_.reward.overlong_penalty = 0.5;
  uint64_t position = 18;  // goes on into the next epoch
  const Experience e = Make(&position);
  EXPECT_EQ(position, 22u);
  EXPECT_EQ(e.position, 18u);
  EXPECT_EQ(e.groups, 4);
  EXPECT_EQ(e.failed + e.reward_errors + e.refills, 0);
  ASSERT_EQ(e.prompts.size(), 4u);
  ASSERT_EQ(e.rollouts.size(), 12u);
  PromptOrder order(20, 11, config_.data.shuffle);
  int64_t equal = 0;
  for (size_t g = 0; g < 4; ++g) {
    EXPECT_EQ(e.prompts[g], order.At(18 + g));
    bool same = true;
    for (size_t i = 3 * g; i < 3 * g + 3; ++i) {
      const Rollout& rollout = e.rollouts[i];
      EXPECT_EQ(rollout.prompt, 18 + g);
      EXPECT_EQ(rollout.sample, static_cast<int64_t>(i % 3));
      EXPECT_EQ(rollout.prompt_tokens, prompts_.tokens[e.prompts[g]]);
      EXPECT_EQ(rollout.support.columns, 5);
      const auto tokens = static_cast<int64_t>(rollout.tokens.size());
      EXPECT_EQ(e.rewards[i], e.scores[i].value + OverlongPenalty(tokens, 6, 3, 0.5));
      same = same && e.scores[i].value == e.scores[3 * g].value;
    }
    equal += same;
  }
  EXPECT_EQ(e.equal_groups, equal);
}

TEST_F(ExperienceTest, TheSampledTokenAloneIsTheSupportWhereNoneIsRecorded) {
  config_.rollout.support = 0;
  uint64_t position = 0;
  for (const Rollout& rollout : Make(&position).rollouts) {
    EXPECT_EQ(rollout.support.columns, 1);
    EXPECT_EQ(rollout.support.ids, rollout.tokens);
    EXPECT_EQ(rollout.support.logprobs, rollout.logprobs);
  }
}

TEST_F(ExperienceTest, DynamicSamplingReplacesEqualGroupsAsOftenAsItMay) {
  config_.rollout.max_tokens = 1;  // nothing is right
  config_.algorithm.dynamic_sampling = true;
  config_.algorithm.max_refills = 3;
  uint64_t position = 2;
  const Experience e = Make(&position);
  EXPECT_EQ(e.refills, 3);
  EXPECT_EQ(e.groups, 16);
  EXPECT_EQ(e.equal_groups, 16);
  EXPECT_EQ(position, 18u);
  EXPECT_EQ(e.position, 2u);
  EXPECT_TRUE(e.prompts.empty() && e.rollouts.empty() && e.scores.empty() && e.rewards.empty());
}

}  // namespace
}  // namespace augur
