#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda_check.h"
#include "kernels/head/scale.h"

namespace augur {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kMostBlocks = 132 * 8;

template <typename E>
__global__ void __launch_bounds__(kThreads) ScaleKernel(E* data, int64_t size, const float* factor) {
  const float f = *factor;
  if (f == 1) return;  // the usual case: backward() of the loss itself
  constexpr int kVector = 16 / sizeof(E);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t vectors = reinterpret_cast<uintptr_t>(data) % 16 == 0 ? size / kVector : 0;
  for (int64_t i = first; i < vectors; i += stride) {
    alignas(16) E x[kVector];
    *reinterpret_cast<uint4*>(x) = reinterpret_cast<const uint4*>(data)[i];
    for (int k = 0; k < kVector; ++k) x[k] = static_cast<E>(static_cast<float>(x[k]) * f);
    reinterpret_cast<uint4*>(data)[i] = *reinterpret_cast<const uint4*>(x);
  }
  for (int64_t i = vectors * kVector + first; i < size; i += stride) {
    data[i] = static_cast<E>(static_cast<float>(data[i]) * f);
  }
}

template <typename E>
void Launch(void* data, int64_t size, const float* factor, void* stream) {
  const auto blocks = static_cast<unsigned>(min(static_cast<int64_t>(kMostBlocks), size / kThreads + 1));
  ScaleKernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<E*>(data), size,
                                                                          factor);
  CheckCuda(cudaGetLastError(), "scaling on the GPU");
}

}  // namespace

void ScaleCuda(void* data, ElementType type, int64_t size, const float* factor, void* stream) {
  if (size == 0) return;
  if (type == ElementType::kBFloat16) {
    Launch<__nv_bfloat16>(data, size, factor, stream);
  } else if (type == ElementType::kHalf) {
    Launch<__half>(data, size, factor, stream);
  } else {
    Launch<float>(data, size, factor, stream);
  }
}

}  // namespace augur
