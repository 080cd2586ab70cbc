// The GPU as the rooms above and below see it, without CUDA headers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <string>

namespace augur {

// The cudaStream_t that work on this tensor's device is queued on; null on the CPU. As an argument of a
// launch it makes that device the current one until the launch returns: the default stream's handle is the
// same for all GPUs and means the current one's.
class CurrentStream {
 public:
  explicit CurrentStream(const at::Tensor& tensor);
  operator void*() const { return stream_; }

 private:
  c10::OptionalDeviceGuard guard_;
  void* stream_ = nullptr;
};

// The compute capability of the tensor's GPU, 90 for 9.0, or the one that AUGUR_GPU names; 0 on the CPU.
int GpuGeneration(const at::Tensor& tensor);

// Whether the tensor's device multiplies FP8 numbers itself.
bool HasFp8Units(const at::Tensor& tensor);

// Whether torch's grouped products of bfloat16 numbers, and of FP8 ones, run there: elsewhere it refuses
// them, or asks the host for the groups, which a graph cannot hold.
bool HasGroupedProducts(const at::Tensor& tensor);
bool HasFp8GroupedProducts(const at::Tensor& tensor);

// Whether the CUDA kernels are compiled in.
bool BuiltWithCuda();

// Whether there is a GPU that runs them.
bool HasUsableGpu();

// The GPUs that are present, by name and memory; or that there is none.
std::string GpuDescription();

}  // namespace augur
