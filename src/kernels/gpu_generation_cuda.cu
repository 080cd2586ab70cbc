#include "kernels/cuda_check.h"
#include "kernels/gpu_generation.h"

namespace augur {
namespace {

constexpr const char* kWhat = "looking at the GPU";

__global__ void ProbeKernel() {}

struct Gpu {
  int device = -1;
  int generation = 0, compiled = 0;  // as kernels are chosen, and as they were compiled
};

const Gpu& CurrentGpu() {
  thread_local Gpu gpu;
  int device = 0;
  CheckCuda(cudaGetDevice(&device), kWhat);
  if (device == gpu.device) return gpu;
  int major = 0, minor = 0;
  cudaFuncAttributes built = {};
  CheckCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), kWhat);
  CheckCuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), kWhat);
  CheckCuda(cudaFuncGetAttributes(&built, ProbeKernel), kWhat);
  gpu = {device, ChooseGpuGeneration(NamedGpuGeneration(), 10 * major + minor), built.ptxVersion};
  return gpu;
}

}  // namespace

int GpuGeneration() { return CurrentGpu().generation; }

bool HasHopperKernels() { return CurrentGpu().generation == 90 && CurrentGpu().compiled >= 90; }

bool StartsEarly() { return CurrentGpu().generation >= 90 && CurrentGpu().compiled >= 90; }

}  // namespace augur
