// Short vectors and exp for the CPU kernels.
#pragma once

#include <cstdint>

#include "kernels/simd/lanes.h"

#if defined(__ARM_NEON)
#include <arm_neon.h>
#elif defined(__AVX2__)
#include <immintrin.h>
#endif

namespace augur {
inline namespace AUGUR_LANES {

// As wide as the registers of the instruction set that a file is compiled for.
#if defined(__AVX512F__)
inline constexpr int kFloats = 16;
#elif defined(__AVX2__)
inline constexpr int kFloats = 8;
#else
inline constexpr int kFloats = 4;
#endif
using Floats = float __attribute__((vector_size(4 * kFloats)));
using Ints = int32_t __attribute__((vector_size(4 * kFloats)));

// The larger and the smaller of x and a bound, in one instruction where the compiler would take three to be
// sure of NaN, which stays NaN.
inline Floats AtLeast(Floats x, float bound) {
#if defined(__ARM_NEON)
  return (Floats)vmaxq_f32((float32x4_t)x, vdupq_n_f32(bound));
#elif defined(__AVX512F__)
  return (Floats)_mm512_max_ps(_mm512_set1_ps(bound), (__m512)x);  // the second where one is NaN
#elif defined(__AVX2__)
  return (Floats)_mm256_max_ps(_mm256_set1_ps(bound), (__m256)x);
#else
  return x < bound ? Floats{} + bound : x;
#endif
}

inline Floats AtMost(Floats x, float bound) {
#if defined(__ARM_NEON)
  return (Floats)vminq_f32((float32x4_t)x, vdupq_n_f32(bound));
#elif defined(__AVX512F__)
  return (Floats)_mm512_min_ps(_mm512_set1_ps(bound), (__m512)x);
#elif defined(__AVX2__)
  return (Floats)_mm256_min_ps(_mm256_set1_ps(bound), (__m256)x);
#else
  return x > bound ? Floats{} + bound : x;
#endif
}

// The larger of each two lanes; where one is NaN, either.
inline Floats Larger(Floats a, Floats b) {
#if defined(__ARM_NEON)
  return (Floats)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#elif defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

// exp(x) for x in [-87, 88], with a relative error below 2e-7; NaN stays NaN.
inline Floats BoundedExp(Floats x) {
  // Adding this rounds to an integer and leaves it in the low mantissa bits, with the exponent's bias on top.
  constexpr float kRound = 0x1.8p23f + 127;
  const Floats shifted = x * 1.44269504f + kRound;
  const Floats k = shifted - kRound;
  const Floats r = (x - k * 0x1.62e400p-1f) - k * 0x1.7f7d1cp-20f;  // x - k ln 2, |r| <= ln 2 / 2
  // 1 + r plus r^2 times the minimax cubic for (e^r - 1 - r) / r^2: relative error 1.05e-7.
  const Floats r2 = r * r;
  const Floats low = 4.9999230315e-1f + r * 1.6667115384e-1f;
  const Floats high = 4.1890330992e-2f + r * 8.3125017013e-3f;
  const Floats p = (1.0f + r) + r2 * (low + r2 * high);
  return p * (Floats)((Ints)shifted << 23);
}

// exp(x); values below -87 and above 88 are clamped there.
inline Floats VectorExp(Floats x) { return BoundedExp(AtMost(AtLeast(x, -87.0f), 88.0f)); }

// log(x) for positive normal x, with an absolute error below 1e-7 max(1, |log x|).
inline Floats VectorLog(Floats x) {
  constexpr int32_t kRootHalf =
      0x3f3504f3;  // the bits of sqrt(1/2): the mantissa is taken in [sqrt(1/2), sqrt(2))
  const Ints shifted = (Ints)x - kRootHalf;
  const Floats exponent = __builtin_convertvector(shifted >> 23, Floats);
  const Floats f = (Floats)((shifted & 0x007fffff) + kRootHalf) - 1.0f;
  // The minimax polynomial of Cephes' logf for (log(1 + f) - f + f^2 / 2) / f^3.
  Floats p = 7.0376836292e-2f * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const Floats f2 = f * f;
  const Floats tail =
      f2 * f * p + exponent * -2.12194440e-4f - 0.5f * f2;  // ln 2 = 0.693359375 - 2.12194440e-4
  return f + tail + exponent * 0.693359375f;
}

// silu(gate) * up.
inline Floats Swiglu(Floats gate, Floats up) { return gate / (1.0f + VectorExp(-gate)) * up; }

inline float VectorExp(float x) { return VectorExp(Floats{} + x)[0]; }

inline float SumOf(Floats x) {
#if defined(__aarch64__)
  return vaddvq_f32((float32x4_t)x);
#else
  float parts[kFloats];
  __builtin_memcpy(parts, &x, sizeof(x));
  for (int half = kFloats / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) parts[i] += parts[i + half];
  }
  return parts[0];
#endif
}

// The largest lane, where none is NaN.
inline float LargestOf(Floats x) {
  float largest = x[0];
  for (int i = 1; i < kFloats; ++i) largest = largest > x[i] ? largest : x[i];
  return largest;
}

inline bool AnyOf(Ints mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256((__m256i)mask, (__m256i)mask) == 0;
#else
  return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
#endif
}

}  // namespace AUGUR_LANES
}  // namespace augur
