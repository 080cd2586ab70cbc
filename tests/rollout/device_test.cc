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

TEST(Device, FloatOnAGpuIsSaidToBeSlowWithItsRemedy) {
  EXPECT_EQ(SlowPrecisionWarning(at::kCPU, "--precision bf16"), "");
  const std::string said = SlowPrecisionWarning(at::kCUDA, "--precision bf16");
  EXPECT_NE(said.find("many times slower than in bf16"), std::string::npos);
  EXPECT_NE(said.find("set --precision bf16"), std::string::npos);
}

}  // namespace
}  // namespace augur
