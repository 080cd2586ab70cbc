// bfloat16 as the kernels see it: storage only, arithmetic is float.
#pragma once

#include <bit>
#include <cstdint>

namespace augur {

// Same layout as c10::BFloat16, so that pointers convert.
struct Bf16 {
  uint16_t bits;
};

inline float ToFloat(float x) { return x; }
inline float ToFloat(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

template <typename T>
T FromFloat(float x);
template <>
inline float FromFloat<float>(float x) {
  return x;
}
// Rounds to nearest even; a NaN stays one.
template <>
inline Bf16 FromFloat<Bf16>(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>(x != x ? 0x7FC0u : rounded)};
}

}  // namespace augur
