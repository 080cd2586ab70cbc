// Small parts that CUDA kernels over rows share: elements as floats, 16 bytes at a time, and sums over a
// block. For .cu files only.
#pragma once

#include <cuda_bf16.h>

#include "kernels/simd/element.h"

namespace augur {

// The element as CUDA knows it.
template <typename T>
struct CudaElement {
  using Type = float;
};
template <>
struct CudaElement<BFloat16> {
  using Type = __nv_bfloat16;
};

template <typename T>
const typename CudaElement<T>::Type* OnDevice(const T* data) {
  return reinterpret_cast<const typename CudaElement<T>::Type*>(data);
}
template <typename T>
typename CudaElement<T>::Type* OnDevice(T* data) {
  return reinterpret_cast<typename CudaElement<T>::Type*>(data);
}

__device__ __forceinline__ float RoundedToBf16(float x) {
  return static_cast<float>(static_cast<__nv_bfloat16>(x));
}

// kVector consecutive elements: 16 bytes of them, aligned, or a single one.
template <int kVector, typename E>
__device__ __forceinline__ void LoadVector(const E* from, float out[kVector]) {
  if constexpr (kVector == 1) {
    out[0] = static_cast<float>(*from);
  } else {
    static_assert(kVector * sizeof(E) == 16);
    alignas(16) E raw[kVector];
    *reinterpret_cast<uint4*>(raw) = *reinterpret_cast<const uint4*>(from);
#pragma unroll
    for (int i = 0; i < kVector; ++i) out[i] = static_cast<float>(raw[i]);
  }
}

// kVector consecutive floats, aligned like the elements that go with them.
template <int kVector>
__device__ __forceinline__ void LoadFloats(const float* from, float out[kVector]) {
  if constexpr (kVector % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kVector; i += 4) {
      const float4 x = *reinterpret_cast<const float4*>(from + i);
      out[i] = x.x, out[i + 1] = x.y, out[i + 2] = x.z, out[i + 3] = x.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i) out[i] = from[i];
  }
}

// values *= row_scale * column_scales[0 .. kVector).
template <int kVector>
__device__ __forceinline__ void Rescale(float values[kVector], float row_scale, const float* column_scales) {
  float by[kVector];
  LoadFloats<kVector>(column_scales, by);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] *= row_scale * by[i];
}

template <int kVector, typename E>
__device__ __forceinline__ void StoreVector(const float values[kVector], E* to) {
  if constexpr (kVector == 1) {
    *to = static_cast<E>(values[0]);
  } else {
    alignas(16) E raw[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) raw[i] = static_cast<E>(values[i]);
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(raw);
  }
}

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

// The sum, or the maximum, over a block of whole warps, for every thread. `shared` holds 32 floats and may be
// used again after the next barrier.
__device__ __forceinline__ float BlockSum(float x, float* shared) {
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  return WarpSum(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f);
}
__device__ __forceinline__ float BlockMax(float x, float* shared) {
  x = WarpMax(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  return WarpMax(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : -INFINITY);
}

}  // namespace augur
