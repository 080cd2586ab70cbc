#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include "base/error.h"
#include "kernels/gpu_generation.h"
#include "ops/device.h"

namespace augur {

CurrentStream::CurrentStream(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return;
  guard_.reset_device(tensor.device());
  stream_ = c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

int GpuGeneration(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return 0;
  const c10::cuda::CUDAGuard guard(tensor.device());
  return GpuGeneration();
}

bool HasFp8Units(const at::Tensor& tensor) { return GpuGeneration(tensor) >= 89; }

bool HasGroupedProducts(const at::Tensor& tensor) {
  const int major = GpuGeneration(tensor) / 10;
  return major == 9 || major == 10;
}

bool HasFp8GroupedProducts(const at::Tensor& tensor) { return GpuGeneration(tensor) / 10 == 9; }

bool BuiltWithCuda() { return true; }

bool HasUsableGpu() { return c10::cuda::device_count() > 0 && HasKernelsForGpu(); }

namespace {

// Why kernels do not run on it, which may be memory that another process has filled.
std::string Hindrance() {
  try {
    return HasKernelsForGpu() ? "" : "; this build has no kernels for it";
  } catch (const Error& fault) {
    return fmt::format("; {}", fault.what());
  }
}

}  // namespace

std::string GpuDescription() {
  const int count = c10::cuda::device_count();
  if (count == 0) return "none";
  const cudaDeviceProp* gpu = at::cuda::getDeviceProperties(0);
  const int named = NamedGpuGeneration();
  return fmt::format(
      "{} x {}, {:.0f} GiB, compute capability {}.{}{}{}", count, gpu->name,
      static_cast<double>(gpu->totalGlobalMem) / (1 << 30), gpu->major, gpu->minor, Hindrance(),
      named == 0 ? "" : fmt::format("; kernels are those of {:.1f} (AUGUR_GPU)", named / 10.0));
}

}  // namespace augur
