// Short vectors and exp for the CPU kernels.
#pragma once

#include <bit>
#include <cstdint>

namespace augur {

// Vectors the compiler maps to whatever registers the machine has.
using Doubles = double __attribute__((vector_size(16)));
using Longs = int64_t __attribute__((vector_size(16)));
inline constexpr int kDoubles = 2;

// exp(x) for x in [-700, 700], relative error below 1e-11; values beyond are clamped, NaN stays NaN.
inline Doubles VectorExp(Doubles x) {
  x = x < -700 ? Doubles{} - 700 : x;
  x = x > 700 ? Doubles{} + 700 : x;
  constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer held in the low mantissa bits
  const Doubles shifted = x * 1.4426950408889634 + kRound;
  const Doubles k = shifted - kRound;
  const Doubles r =
      (x - k * 0x1.62e42fefa3800p-1) - k * 0x1.ef35793c76730p-45;  // x - k ln 2, |r| <= ln 2 / 2
  // The Taylor polynomial of degree 10, paired (Estrin) so that its terms need not wait for one another.
  const Doubles r2 = r * r, r4 = r2 * r2;
  const Doubles low = (1 + r) + r2 * (0.5 + r * (1.0 / 6));
  const Doubles middle = (1.0 / 24 + r * (1.0 / 120)) + r2 * (1.0 / 720 + r * (1.0 / 5040));
  const Doubles high = (1.0 / 40320 + r * (1.0 / 362880)) + r2 * (1.0 / 3628800);
  const Doubles p = low + r4 * (middle + r4 * high);
  return p * (Doubles)(((Longs)shifted + 1023) << 52);
}

inline double VectorExp(double x) { return VectorExp(Doubles{x, x})[0]; }

inline double SumOf(Doubles x) { return x[0] + x[1]; }

// exp(x) for x in [-87, 88], relative error below 3e-7; values beyond are clamped, NaN stays NaN.
// Branch-free, so that the compiler turns loops over it into vector code.
inline float VectorExp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kRound = 0x1.8p23f;
  const float shifted = x * 1.44269504f + kRound;
  const float k = shifted - kRound;
  const float r = (x - k * 0x1.62ep-1f) - k * 0x1.0bfbe8p-15f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1;
  p = p * r + 1;
  return p * std::bit_cast<float>((std::bit_cast<int32_t>(shifted) + 127) << 23);
}

}  // namespace augur
