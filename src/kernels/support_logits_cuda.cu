#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda_check.h"
#include "kernels/support_logits.h"

namespace augur {
namespace {

constexpr int kThreads = 256;  // one warp per (row, column)

template <typename T, typename E>
__device__ T PartialDot(const E* a, const E* b, int64_t width, int lane) {
  constexpr int kVector = 16 / sizeof(E);
  T sum = 0;
  const bool aligned =
      width % kVector == 0 && (reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b)) % 16 == 0;
  if (!aligned) {
    for (int64_t i = lane; i < width; i += 32) sum += static_cast<T>(a[i]) * static_cast<T>(b[i]);
    return sum;
  }
#pragma unroll 4
  for (int64_t i = lane * kVector; i < width; i += 32 * kVector) {
    alignas(16) E x[kVector], y[kVector];
    *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(a + i);
    *reinterpret_cast<uint4*>(y) = *reinterpret_cast<const uint4*>(b + i);
    for (int k = 0; k < kVector; ++k) sum += static_cast<T>(x[k]) * static_cast<T>(y[k]);
  }
  return sum;
}

template <typename T, typename E>
__global__ void __launch_bounds__(kThreads) SupportLogitsKernel(SupportRows in, T* logits) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (i >= in.rows * in.columns) return;
  const int lane = threadIdx.x % 32;
  const int64_t id = in.support[i];
  T sum = 0;
  if (id >= 0) {
    sum = PartialDot<T>(static_cast<const E*>(in.hidden) + i / in.columns * in.width,
                        static_cast<const E*>(in.weight) + id * in.width, in.width, lane);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (in.bias != nullptr) sum += static_cast<T>(static_cast<const E*>(in.bias)[id]);
  }
  if (lane == 0) logits[i] = sum;
}

template <typename T, typename E>
void Launch(const SupportRows& in, T* logits, void* stream) {
  const int64_t dots = in.rows * in.columns;
  if (dots == 0) return;
  const auto blocks = static_cast<unsigned>((dots * 32 + kThreads - 1) / kThreads);
  SupportLogitsKernel<T, E><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(in, logits);
  CheckCuda(cudaGetLastError(), "support logits on the GPU");
}

}  // namespace

template <>
void SupportLogitsCuda(const SupportRows& in, double* logits, void* stream) {
  Launch<double, double>(in, logits, stream);
}

template <>
void SupportLogitsCuda(const SupportRows& in, float* logits, void* stream) {
  if (in.type == ElementType::kBFloat16) {
    Launch<float, __nv_bfloat16>(in, logits, stream);
  } else if (in.type == ElementType::kHalf) {
    Launch<float, __half>(in, logits, stream);
  } else {
    Launch<float, float>(in, logits, stream);
  }
}

}  // namespace augur
