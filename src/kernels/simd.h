// What the CPU kernels share to be vectorised by the compiler.
#pragma once

#include <bit>
#include <cstdint>

// Compiles a function once per instruction set and picks at load time. Everything it calls must be inlined.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define AUGUR_CPU_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define AUGUR_CPU_CLONES
#endif

namespace augur {

// e^x within 2 ulp for x in [-87, 88], clamped outside; NaN stays NaN. Free of branches and calls, so that a
// loop over it becomes vector code.
inline float FastExp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
  const float shifted = x * 1.44269504f + kShift;
  const float k = shifted - kShift;
  const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;  // ln 2 in two parts
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kShift) + 127u) << 23;
  return p * std::bit_cast<float>(exponent);
}

}  // namespace augur
