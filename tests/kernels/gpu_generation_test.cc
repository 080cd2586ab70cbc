#include "kernels/gpu_generation.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"

namespace augur {
namespace {

class NamedGpu : public testing::Test {
 protected:
  void TearDown() override { unsetenv("AUGUR_GPU"); }
};

TEST_F(NamedGpu, IsThatOfTheEnvironment) {
  unsetenv("AUGUR_GPU");
  EXPECT_EQ(NamedGpuGeneration(), 0);
  for (const auto& [name, generation] : {std::pair("", 0), {"8.0", 80}, {"8.9", 89}, {"12.0", 120}}) {
    setenv("AUGUR_GPU", name, 1);
    EXPECT_EQ(NamedGpuGeneration(), generation) << name;
  }
}

TEST_F(NamedGpu, MustBeAComputeCapability) {
  for (const char* name : {"hopper", "90", "9.", "0.5", "8.0 ", "123.0", "-8.0", "sm_80"}) {
    setenv("AUGUR_GPU", name, 1);
    EXPECT_THROW(NamedGpuGeneration(), Error) << name;
  }
}

TEST(GpuGeneration, IsTheNamedOneWhereTheGpuCanRunItsKernels) {
  EXPECT_EQ(ChooseGpuGeneration(0, 89), 89);
  EXPECT_EQ(ChooseGpuGeneration(90, 90), 90);
  EXPECT_EQ(ChooseGpuGeneration(80, 90), 80);
  EXPECT_EQ(ChooseGpuGeneration(120, 90), 120);
  EXPECT_THROW(ChooseGpuGeneration(90, 80), Error);
  EXPECT_THROW(ChooseGpuGeneration(90, 100), Error);  // Hopper's own instructions
  EXPECT_THROW(ChooseGpuGeneration(89, 80), Error);
}

TEST(GpuGeneration, AGpuWithoutKernelsIsToldWhatToDo) {
  const auto message = [](int generation) {
    try {
      ThrowGpuWithoutKernels(generation);
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_NE(message(75).find("7.5"), std::string::npos);
  EXPECT_NE(message(75).find("8.0 and later"), std::string::npos) << message(75);
  EXPECT_NE(message(89).find("build Augur on this machine"), std::string::npos) << message(89);
}

}  // namespace
}  // namespace augur
