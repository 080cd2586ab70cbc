#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include "ops/device.h"

namespace augur {

void* CurrentStream(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return nullptr;
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

bool HasFp8Units(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return false;
  const cudaDeviceProp* gpu = at::cuda::getDeviceProperties(tensor.device().index());
  return gpu->major * 10 + gpu->minor >= 89;
}

bool BuiltWithCuda() { return true; }

std::string GpuDescription() {
  const int count = c10::cuda::device_count();
  if (count == 0) return "none";
  const cudaDeviceProp* gpu = at::cuda::getDeviceProperties(0);
  return fmt::format("{} x {}, {:.0f} GiB, compute capability {}.{}", count, gpu->name,
                     static_cast<double>(gpu->totalGlobalMem) / (1 << 30), gpu->major, gpu->minor);
}

}  // namespace augur
