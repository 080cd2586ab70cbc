// Rounding to FP8 e4m3 with a scale per row, as kernels that end in a quantised product do it. For .cu files
// only.
#pragma once

#include <cuda_fp8.h>

#include "kernels/layer/fp8_scale.h"

namespace augur {

// Divides by the scale of a row, to the bits of x / scale, in fewer instructions: the quotient by the
// inverse, put right by what it leaves over. Tiny scales are multiplied up first, so that they have an
// inverse.
class RowDivisor {
 public:
  RowDivisor() = default;  // for arrays
  __device__ __forceinline__ explicit RowDivisor(float scale) : up_(scale < 0x1p-90f ? 0x1p100f : 1.0f) {
    scale_ = scale * up_;
    inverse_ = 1.0f / scale_;
    if (isinf(scale_)) scale_ = 0;  // finite numbers become 0
  }

  __device__ __forceinline__ float operator()(float x) const {
    x *= up_;
    const float quotient = x * inverse_;
    return fmaf(fmaf(-quotient, scale_, x), inverse_, quotient);
  }

 private:
  float up_, scale_, inverse_;
};

// kVector values divided by the scale and rounded to nearest even.
template <int kVector>
__device__ __forceinline__ void StoreFp8(const float values[kVector], const RowDivisor& divide, uint8_t* to) {
  if constexpr (kVector == 1) {
    *to = __nv_cvt_float_to_fp8(divide(values[0]), __NV_SATFINITE, __NV_E4M3);
  } else {
    alignas(8) uint16_t raw[kVector / 2];
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      raw[i / 2] = __nv_cvt_float2_to_fp8x2(make_float2(divide(values[i]), divide(values[i + 1])),
                                            __NV_SATFINITE, __NV_E4M3);
    }
    if constexpr (kVector == 8) {
      *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(raw);
    } else {
      *reinterpret_cast<uint32_t*>(to) = *reinterpret_cast<const uint32_t*>(raw);
    }
  }
}

}  // namespace augur
