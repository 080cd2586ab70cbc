#include "train/checkpoint/experience_file.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

Experience Example() {
  Experience e;
  for (int i = 0; i < 4; ++i) {
    Rollout r;
    r.prompt = 40 + static_cast<uint64_t>(i / 2);
    r.sample = i % 2;
    r.prompt_tokens = i < 2 ? std::vector<int32_t>{5, 6} : std::vector<int32_t>{7};
    for (int t = 0; t <= i; ++t) {
      r.tokens.push_back(10 * i + t);
      r.logprobs.push_back(-0.25f * static_cast<float>(t + 1));
      r.support.ids.insert(r.support.ids.end(), {10 * i + t, -1});
      r.support.logprobs.insert(r.support.logprobs.end(), {-0.25f * static_cast<float>(t + 1), -3});
    }
    r.support.columns = 2;
    r.routing = {1, 2, std::vector<uint8_t>(static_cast<size_t>(2 * (i + 1)), static_cast<uint8_t>(i))};
    r.temperature = 0.7;
    r.weight_version = 9;
    r.finish = i == 0 ? FinishReason::kLength : FinishReason::kEos;
    e.rollouts.push_back(r);
    e.scores.push_back({.value = 0.5 * i, .right = i == 3, .answered = i > 0, .failed = i == 1});
    e.rewards.push_back(i - 0.125);
  }
  e.scores[2].figures = {{"acc", 0.75}};
  e.prompts = {1, 0};
  e.weight_version = 9;
  e.position = 17;
  e.groups = 6;
  e.equal_groups = 4;
  e.refills = 2;
  e.reward_errors = 3;
  e.reward_restarts = 5;
  e.failed = 7;
  e.decode_batch = 8;
  return e;
}

TEST(ExperienceFile, ComesBackAsItWasWritten) {
  const fs::path path = fs::path(testing::TempDir()) / "experience.safetensors";
  const Experience sent = Example(), none;
  const Json counters = SaveExperiences(std::vector{&none, &sent}, path);
  const std::vector<std::vector<int32_t>> prompts = {{7}, {5, 6}};
  const std::vector<Experience> all = LoadExperiences(Json::parse(counters.dump()), path, prompts);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_TRUE(all[0].rollouts.empty());
  const Experience& got = all[1];
  EXPECT_EQ(got.prompts, sent.prompts);
  EXPECT_EQ(got.rewards, sent.rewards);
  EXPECT_EQ(got.weight_version, 9);
  EXPECT_EQ(got.position, 17u);
  EXPECT_EQ(got.groups, 6);
  EXPECT_EQ(got.equal_groups, 4);
  EXPECT_EQ(got.refills, 2);
  EXPECT_EQ(got.reward_errors, 3);
  EXPECT_EQ(got.reward_restarts, 5);
  EXPECT_EQ(got.failed, 7);
  EXPECT_EQ(got.decode_batch, 8);
  ASSERT_EQ(got.rollouts.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const Rollout &is = got.rollouts[i], &was = sent.rollouts[i];
    EXPECT_EQ(is.prompt, was.prompt);
    EXPECT_EQ(is.sample, was.sample);
    EXPECT_EQ(is.prompt_tokens, was.prompt_tokens);
    EXPECT_EQ(is.tokens, was.tokens);
    EXPECT_EQ(is.logprobs, was.logprobs);
    EXPECT_EQ(is.support.columns, 2);
    EXPECT_EQ(is.support.ids, was.support.ids);
    EXPECT_EQ(is.support.logprobs, was.support.logprobs);
    EXPECT_EQ(is.routing.layers, 1);
    EXPECT_EQ(is.routing.experts_per_token, 2);
    EXPECT_EQ(is.routing.experts, was.routing.experts);
    EXPECT_EQ(is.temperature, 0.7);
    EXPECT_EQ(is.weight_version, 9);
    EXPECT_EQ(is.finish, was.finish);
    EXPECT_EQ(got.scores[i].value, sent.scores[i].value);
    EXPECT_EQ(got.scores[i].right, sent.scores[i].right);
    EXPECT_EQ(got.scores[i].answered, sent.scores[i].answered);
    EXPECT_EQ(got.scores[i].failed, sent.scores[i].failed);
    EXPECT_EQ(got.scores[i].figures, sent.scores[i].figures);
  }
  const std::vector<std::vector<int32_t>> fewer = {{7}};
  EXPECT_THROW(LoadExperiences(counters, path, fewer), Error);
  fs::remove(path);
}

}  // namespace
}  // namespace augur
