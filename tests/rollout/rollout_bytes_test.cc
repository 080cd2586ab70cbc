#include "rollout/rollout_bytes.h"

#include <gtest/gtest.h>

namespace augur {
namespace {

TEST(RolloutBytes, EverythingButThePromptsTokensArrives) {
  Rollout sent;
  sent.prompt = 7;
  sent.sample = 2;
  sent.prompt_tokens = {1, 2};
  sent.tokens = {3, 4};
  sent.logprobs = {-0.5f, -0.25f};
  sent.support = {3, {3, 9, -1, 4, 8, 1}, {-0.5f, -1, -2, -0.25f, -3, -4}};
  sent.routing = {1, 2, {0, 5, 1, 6}};
  sent.temperature = 0.7;
  sent.weight_version = 11;
  sent.finish = FinishReason::kFailed;
  sent.error = "why";
  sent.not_finite = true;
  ByteWriter writer;
  PutRollout(sent, &writer);
  PutRollout(Rollout(), &writer);
  ByteReader reader(writer.bytes());
  const Rollout got = GetRollout(&reader);
  EXPECT_EQ(got.prompt, sent.prompt);
  EXPECT_EQ(got.sample, sent.sample);
  EXPECT_TRUE(got.prompt_tokens.empty());
  EXPECT_EQ(got.tokens, sent.tokens);
  EXPECT_EQ(got.logprobs, sent.logprobs);
  EXPECT_EQ(got.support.columns, sent.support.columns);
  EXPECT_EQ(got.support.ids, sent.support.ids);
  EXPECT_EQ(got.support.logprobs, sent.support.logprobs);
  EXPECT_EQ(got.routing.layers, sent.routing.layers);
  EXPECT_EQ(got.routing.experts_per_token, sent.routing.experts_per_token);
  EXPECT_EQ(got.routing.experts, sent.routing.experts);
  EXPECT_EQ(got.temperature, sent.temperature);
  EXPECT_EQ(got.weight_version, sent.weight_version);
  EXPECT_EQ(got.finish, sent.finish);
  EXPECT_EQ(got.error, sent.error);
  EXPECT_TRUE(got.not_finite);
  const Rollout second = GetRollout(&reader);
  EXPECT_FALSE(second.not_finite);
  EXPECT_TRUE(second.tokens.empty());
  EXPECT_TRUE(reader.done());
}

}  // namespace
}  // namespace augur
