#include "ops/out_of_memory.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

namespace augur {
namespace {

std::string Shown(const std::exception& fault) { return OutOfMemory("step 1", fault, "train less").what(); }

TEST(OutOfMemoryTest, IsKnownByWhatCudaAndItsLibrariesSay) {
  for (const char* said :
       {"CUDA out of memory. Tried to allocate 2.00 GiB.", "CUDA error: out of memory\nSearch for ...",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"}) {
    const std::runtime_error fault(said);
    EXPECT_TRUE(IsOutOfMemory(fault)) << said;
    EXPECT_NE(Shown(fault).find("the memory of the GPU is full"), std::string::npos) << said;
  }
}

TEST(OutOfMemoryTest, IsKnownOnTheCpu) {
  const std::runtime_error fault(
      "DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes.");
  EXPECT_TRUE(IsOutOfMemory(fault));
  EXPECT_NE(Shown(fault).find("the memory of this machine is full (2.00 GiB were wanted)"),
            std::string::npos);
  EXPECT_TRUE(IsOutOfMemory(std::bad_alloc()));
}

TEST(OutOfMemoryTest, OtherFaultsAreNot) {
  EXPECT_FALSE(IsOutOfMemory(std::runtime_error("CUDA error: an illegal memory access was encountered")));
}

}  // namespace
}  // namespace augur
