// The current CUDA stream, without CUDA headers above this line.
#pragma once

#include <ATen/core/Tensor.h>

namespace augur {

// The cudaStream_t that work on this tensor's device is queued on; null on the CPU.
void* CurrentStream(const at::Tensor& tensor);

}  // namespace augur
