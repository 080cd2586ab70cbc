#include "rollout/device.h"

#include <gtest/gtest.h>

#include "base/process_group.h"

namespace augur {
namespace {

TEST(Device, GenerationOverlapsTrainingInAProcessAlone) {
  RlConfig config;
  config.rollout.staleness = 1;
  EXPECT_TRUE(MakeEngineOptions(config, at::kCUDA).own_weights);
  ProcessGroup two;
  two.size = 2;
  SetProcessGroup(two);
  EXPECT_FALSE(MakeEngineOptions(config, at::kCUDA).own_weights);  // a second copy of the weights for nothing
  SetProcessGroup({});
}

}  // namespace
}  // namespace augur
