#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda_check.h"
#include "kernels/head/support_logits.h"

namespace augur {
namespace {

constexpr int kThreads = 256;
constexpr int kTogether = 3;  // columns of a row that a warp takes at once: they share the hidden state

// This lane's parts of the dot products of `a` with each b.
template <typename T, typename E>
__device__ void PartialDots(const E* a, const E* const b[kTogether], int64_t width, T sums[kTogether]) {
  constexpr int kVector = 16 / sizeof(E);
  const int lane = threadIdx.x % 32;
  uintptr_t addresses = reinterpret_cast<uintptr_t>(a);
  for (int c = 0; c < kTogether; ++c) addresses |= reinterpret_cast<uintptr_t>(b[c]);
  if (width % kVector != 0 || addresses % 16 != 0) {
    for (int64_t i = lane; i < width; i += 32) {
      for (int c = 0; c < kTogether; ++c) sums[c] += static_cast<T>(a[i]) * static_cast<T>(b[c][i]);
    }
    return;
  }
#pragma unroll 2
  for (int64_t i = lane * kVector; i < width; i += 32 * kVector) {
    alignas(16) E x[kVector], y[kTogether][kVector];
    *reinterpret_cast<uint4*>(x) = *reinterpret_cast<const uint4*>(a + i);
#pragma unroll
    for (int c = 0; c < kTogether; ++c) {
      *reinterpret_cast<uint4*>(y[c]) = *reinterpret_cast<const uint4*>(b[c] + i);
    }
#pragma unroll
    for (int c = 0; c < kTogether; ++c) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) sums[c] += static_cast<T>(x[k]) * static_cast<T>(y[c][k]);
    }
  }
}

template <typename T, typename E>
__global__ void __launch_bounds__(kThreads)
    SupportLogitsKernel(SupportRows in, int warps_per_row, T* logits) {
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int64_t row = warp / warps_per_row;
  if (row >= in.rows) return;
  const int first = static_cast<int>(warp % warps_per_row) * kTogether;
  const E* hidden = static_cast<const E*>(in.hidden) + row * in.width;
  int64_t ids[kTogether];
  const E* weights[kTogether];
  for (int c = 0; c < kTogether; ++c) {
    ids[c] = first + c < in.columns ? in.support[row * in.columns + first + c] : -1;
    weights[c] = ids[c] >= 0 ? static_cast<const E*>(in.weight) + ids[c] * in.width : hidden;
  }
  T sums[kTogether] = {};
  PartialDots(hidden, weights, in.width, sums);
  for (int c = 0; c < kTogether; ++c) {
    for (int offset = 16; offset > 0; offset /= 2) sums[c] += __shfl_xor_sync(0xffffffffu, sums[c], offset);
    if (threadIdx.x % 32 != 0 || first + c >= in.columns) continue;
    const T bias =
        in.bias != nullptr && ids[c] >= 0 ? static_cast<T>(static_cast<const E*>(in.bias)[ids[c]]) : T(0);
    logits[row * in.columns + first + c] = ids[c] >= 0 ? sums[c] + bias : T(0);
  }
}

template <typename T, typename E>
void Launch(const SupportRows& in, T* logits, void* stream) {
  if (in.rows == 0 || in.columns == 0) return;
  const int warps_per_row = (in.columns + kTogether - 1) / kTogether;
  const auto blocks = static_cast<unsigned>((in.rows * warps_per_row * 32 + kThreads - 1) / kThreads);
  SupportLogitsKernel<T, E>
      <<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(in, warps_per_row, logits);
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
