// Rounding to FP8 e4m3 with a scale per row, as kernels that end in a quantised product do it. For .cu files
// only.
#pragma once

#include <cuda_fp8.h>

#include "kernels/layer/fp8_scale.h"

namespace augur {

// kVector values divided by the scale and rounded to nearest even.
template <int kVector>
__device__ __forceinline__ void StoreFp8(const float values[kVector], float scale, uint8_t* to) {
  if constexpr (kVector == 1) {
    *to = __nv_cvt_float_to_fp8(values[0] / scale, __NV_SATFINITE, __NV_E4M3);
  } else {
    alignas(8) uint16_t raw[kVector / 2];
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      raw[i / 2] = __nv_cvt_float2_to_fp8x2(make_float2(values[i] / scale, values[i + 1] / scale),
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
