// exp for the CPU kernels, branch-free so that the compiler turns loops over it into vector code.
#pragma once

#include <bit>
#include <cstdint>

namespace augur {

// exp(x) for x in [-700, 700], relative error below 1e-11; values beyond are clamped, NaN stays NaN.
inline double VectorExp(double x) {
  x = x < -700 ? -700 : x;
  x = x > 700 ? 700 : x;
  constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer held in the low mantissa bits
  const double shifted = x * 1.4426950408889634 + kRound;
  const double k = shifted - kRound;
  const double r = (x - k * 0x1.62e42fefa3800p-1) - k * 0x1.ef35793c76730p-45;  // x - k ln 2, |r| <= ln 2 / 2
  double p = 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1;
  p = p * r + 1;
  return p * std::bit_cast<double>((std::bit_cast<int64_t>(shifted) + 1023) << 52);
}

// exp(x) for x in [-87, 88], relative error below 3e-7; values beyond are clamped, NaN stays NaN.
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
