#include "trajectory/trajectory_json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace augur {
namespace {

TEST(TrajectoryJson, IsOneObjectWithRowsOfTheSupport) {
  Trajectory rollout;
  rollout.prompt = 7;
  rollout.sample = 2;
  rollout.prompt_tokens = {1};
  rollout.tokens = {3, 4};
  rollout.logprobs = {-0.5f, -0.25f};
  rollout.support = {2, {3, -1, 4, 9}, {-0.5f, -INFINITY, -0.25f, -2}};
  rollout.temperature = 0.75;
  rollout.weight_version = 5;
  rollout.finish = FinishReason::kLength;
  EXPECT_EQ(
      ToJson(rollout).dump(),
      R"({"prompt":7,"sample":2,"prompt_tokens":[1],"tokens":[3,4],"spans":[[0,2,"sampled",5]],"logprobs":[-0.5,-0.25],)"
      R"("support_ids":[[3,-1],[4,9]],"support_logprobs":[[-0.5,null],[-0.25,-2.0]],"temperature":0.75,)"
      R"("weight_version":5,"finish_reason":"length"})");
  rollout.support = {};
  rollout.finish = FinishReason::kFailed;
  rollout.error = "why";
  const TrajectoryJson failed = ToJson(rollout);
  EXPECT_FALSE(failed.contains("support_ids"));
  EXPECT_EQ(failed["error"], "why");
  EXPECT_EQ(failed["finish_reason"], "failed");
}

}  // namespace
}  // namespace augur
