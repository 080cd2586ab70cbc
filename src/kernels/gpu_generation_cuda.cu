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

// What the probe was compiled for; 0 where none of it runs on the current GPU.
int CompiledFor() {
  cudaFuncAttributes built = {};
  const cudaError_t fault = cudaFuncGetAttributes(&built, ProbeKernel);
  cudaGetLastError();  // a fault would be taken for a later kernel's
  if (fault == cudaErrorNoKernelImageForDevice || fault == cudaErrorInvalidDeviceFunction ||
      fault == cudaErrorUnsupportedPtxVersion) {
    return 0;
  }
  CheckCuda(fault, kWhat);
  return built.ptxVersion;
}

const Gpu& CurrentGpu() {
  thread_local Gpu gpu;
  int device = 0;
  CheckCuda(cudaGetDevice(&device), kWhat);
  if (device == gpu.device) return gpu;
  int major = 0, minor = 0;
  CheckCuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), kWhat);
  CheckCuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), kWhat);
  const int present = 10 * major + minor, compiled = CompiledFor();
  if (compiled == 0) ThrowGpuWithoutKernels(present);
  gpu = {device, ChooseGpuGeneration(NamedGpuGeneration(), present), compiled};
  return gpu;
}

}  // namespace

bool HasKernelsForGpu() { return CompiledFor() > 0; }

int GpuGeneration() { return CurrentGpu().generation; }

bool HasHopperKernels() { return CurrentGpu().generation == 90 && CurrentGpu().compiled >= 90; }

bool StartsEarly() { return CurrentGpu().generation >= 90 && CurrentGpu().compiled >= 90; }

}  // namespace augur
