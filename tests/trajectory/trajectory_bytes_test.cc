#include "trajectory/trajectory_bytes.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace augur {
namespace {

TEST(TrajectoryBytes, EverythingButThePromptsTokensArrives) {
  Trajectory sent;
  sent.prompt = 7;
  sent.sample = 2;
  sent.prompt_tokens = {1, 2};
  sent.tokens = {3, 50, 51, 4};
  sent.spans = {{0, 1, true, 11}, {1, 3, false, 0}, {3, 4, true, 12}};
  sent.logprobs = {-0.5f, -0.25f};
  sent.support = {3, {3, 9, -1, 4, 8, 1}, {-0.5f, -1, -2, -0.25f, -3, -4}};
  sent.routing = {1, 2, {0, 5, 1, 6}};
  sent.temperature = 0.7;
  sent.weight_version = 11;
  sent.finish = FinishReason::kFailed;
  sent.error = "why";
  sent.not_finite = true;
  ByteWriter writer;
  PutTrajectory(sent, &writer);
  PutTrajectory(Trajectory(), &writer);
  ByteReader reader(writer.bytes());
  const Trajectory got = GetTrajectory(&reader);
  EXPECT_EQ(got.prompt, sent.prompt);
  EXPECT_EQ(got.sample, sent.sample);
  EXPECT_TRUE(got.prompt_tokens.empty());
  EXPECT_EQ(got.tokens, sent.tokens);
  EXPECT_EQ(got.spans, sent.spans);
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
  const Trajectory second = GetTrajectory(&reader);
  EXPECT_FALSE(second.not_finite);
  EXPECT_TRUE(second.tokens.empty());
  EXPECT_TRUE(reader.done());
}

TEST(TrajectoryBytes, ThatDoNotFitTogetherAreRefused) {
  Trajectory whole;
  whole.tokens = {1, 2, 3};
  whole.support = {1, {1, 2, 3}, {-1, -1, -1}};
  const auto arrives = [](const Trajectory& sent) {
    ByteWriter writer;
    PutTrajectory(sent, &writer);
    ByteReader reader(writer.bytes());
    return GetTrajectory(&reader).tokens == sent.tokens;
  };
  EXPECT_TRUE(arrives(whole));
  const std::vector<std::vector<Span>> wrong = {{{0, 2}},         {{0, 4}},         {{1, 3}},
                                                {{0, 2}, {1, 3}}, {{0, 0}, {0, 3}}, {{0, 2}, {2, 3, false}}};
  for (const std::vector<Span>& spans : wrong) {
    Trajectory broken = whole;
    broken.spans = spans;
    EXPECT_THROW(arrives(broken), Error);
  }
  Trajectory without = whole;
  without.support.ids.pop_back();
  EXPECT_THROW(arrives(without), Error);
}

}  // namespace
}  // namespace augur
