// The GPU as the rooms above and below see it, without CUDA headers.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace augur {

// The cudaStream_t that work on this tensor's device is queued on; null on the CPU.
void* CurrentStream(const at::Tensor& tensor);

// Whether the tensor's device multiplies FP8 numbers itself (compute capability 8.9 and newer).
bool HasFp8Units(const at::Tensor& tensor);

// Whether the CUDA kernels are compiled in.
bool BuiltWithCuda();

// The GPUs that are present, by name and memory; or that there is none.
std::string GpuDescription();

}  // namespace augur
