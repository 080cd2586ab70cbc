// FP8 e4m3 as values: four significant bits, exponents -6 .. 8, subnormals in steps of 2^-9, 448 the largest.
#pragma once

#include "kernels/simd/vector_math.h"

namespace augur {

inline constexpr float kLargestE4m3 = 448.0f;

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

inline float RoundToE4m3(float x) { return RoundToE4m3(Floats{x, x, x, x})[0]; }

// The scale that maps a row or channel with this largest magnitude onto the whole range.
inline float E4m3Scale(float largest) { return largest > 0 ? largest / kLargestE4m3 : 1.0f; }

}  // namespace augur
