// FP8 e4m3 as values: four significant bits, exponents -6 .. 8, subnormals in steps of 2^-9, 448 the largest.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/layer/fp8_scale.h"
#include "kernels/simd/vector_math.h"

namespace augur {
inline namespace AUGUR_LANES {

// The nearest e4m3 value, ties to even; beyond 448 saturates; NaN stays NaN.
inline Floats RoundToE4m3(Floats x) {
  const Ints sign = (Ints)x & INT32_MIN;
  const Floats magnitude = AtMost((Floats)((Ints)x & INT32_MAX), kLargestE4m3);
  const Ints bits = (Ints)magnitude;
  const Ints normal = (bits + 0x7ffff + ((bits >> 20) & 1)) & ~0xfffff;  // 20 of 23 mantissa bits go
  constexpr float kStep = 0x1.8p14f;                                     // a float of this size ends at 2^-9
  const Ints subnormal = (Ints)((magnitude + kStep) - kStep);
  const Ints rounded = magnitude < 0x1p-6f ? subnormal : normal;
  return x != x ? x : (Floats)(rounded | sign);
}

// x [size] in place: each the nearest e4m3 value times one power of two, which bfloat16 holds exactly.
inline void RoundToScaledE4m3(int64_t size, float* x) {
  float largest = 0;
  for (int64_t i = 0; i < size; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float scale = E4m3PowerOfTwoScale(largest), inverse = 1 / scale;
  for (int64_t i = 0; i < size; i += kFloats) {
    const int64_t count = std::min<int64_t>(kFloats, size - i);
    Floats lanes = {};
    for (int64_t k = 0; k < count; ++k) lanes[k] = x[i + k] * inverse;
    lanes = RoundToE4m3(lanes) * scale;
    for (int64_t k = 0; k < count; ++k) x[i + k] = lanes[k];
  }
}

inline float RoundToE4m3(float x) { return RoundToE4m3(Floats{} + x)[0]; }

}  // namespace AUGUR_LANES
}  // namespace augur
