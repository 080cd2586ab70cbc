// Short vectors and exp for the CPU kernels.
#pragma once

#include <cstdint>

#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace augur {

// Vectors the compiler maps to the registers every supported machine has.
using Floats = float __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));
inline constexpr int kFloats = 4;

// The larger and the smaller of x and a bound, in one instruction where the compiler would take three to be
// sure of NaN, which stays NaN.
inline Floats AtLeast(Floats x, float bound) {
#if defined(__ARM_NEON)
  return (Floats)vmaxq_f32((float32x4_t)x, vdupq_n_f32(bound));
#else
  return x < bound ? Floats{} + bound : x;
#endif
}

inline Floats AtMost(Floats x, float bound) {
#if defined(__ARM_NEON)
  return (Floats)vminq_f32((float32x4_t)x, vdupq_n_f32(bound));
#else
  return x > bound ? Floats{} + bound : x;
#endif
}

// exp(x) with a relative error below 2e-7. Values below -87 and above 88 are clamped there; NaN stays NaN.
inline Floats VectorExp(Floats x) {
  x = AtMost(AtLeast(x, -87.0f), 88.0f);
  constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer held in the low mantissa bits
  const Floats shifted = x * 1.44269504f + kRound;
  const Floats k = shifted - kRound;
  const Floats r = (x - k * 0x1.62e400p-1f) - k * 0x1.7f7d1cp-20f;  // x - k ln 2, |r| <= ln 2 / 2
  // 1 + r plus r^2 times the minimax cubic for (e^r - 1 - r) / r^2: relative error 1.05e-7.
  const Floats r2 = r * r;
  const Floats low = 4.9999230315e-1f + r * 1.6667115384e-1f;
  const Floats high = 4.1890330992e-2f + r * 8.3125017013e-3f;
  const Floats p = (1.0f + r) + r2 * (low + r2 * high);
  return p * (Floats)(((Ints)shifted + 127) << 23);
}

inline float VectorExp(float x) { return VectorExp(Floats{x, x, x, x})[0]; }

inline float SumOf(Floats x) {
#if defined(__aarch64__)
  return vaddvq_f32((float32x4_t)x);
#else
  return (x[0] + x[1]) + (x[2] + x[3]);
#endif
}

}  // namespace augur
