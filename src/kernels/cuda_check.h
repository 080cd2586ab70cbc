// Turns a CUDA error code into an augur::Error; for .cu files only.
#pragma once

#include <cuda_runtime.h>

namespace augur {

// Defined in cuda_check.cc: nvcc cannot read the headers that the message is made with.
[[noreturn]] void ThrowCudaError(const char* what, const char* message);

inline void CheckCuda(cudaError_t code, const char* what) {
  if (code != cudaSuccess) ThrowCudaError(what, cudaGetErrorString(code));
}

}  // namespace augur
