// Rounding whole vectors to the element types, for kernels that hold values as floats.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/element.h"
#include "kernels/vector_math.h"

namespace augur {

inline Floats LoadFloats(const float* from) {
  Floats lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

inline void StoreFloats(Floats lanes, float* to) { std::memcpy(to, &lanes, sizeof(lanes)); }

// To nearest even; NaN stays NaN.
inline Ints Bf16Bits(Floats x) {
  const Ints bits = (Ints)x;
  const Ints rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return (x != x ? (bits | 0x400000) : rounded) & static_cast<int32_t>(0xffff0000u);
}

// Each lane rounded to T, as a float again.
template <typename T>
inline Floats Rounded(Floats x) {
  if constexpr (std::is_same_v<T, BFloat16>) return (Floats)Bf16Bits(x);
  return x;
}

template <typename T>
inline float Rounded(float x) {
  return static_cast<float>(FromFloat<T>(x));
}

// Four neighbouring bfloat16.
inline void StoreBf16(Floats x, uint16_t* to) {
  typedef uint16_t Halves __attribute__((vector_size(8)));
  typedef uint32_t Words __attribute__((vector_size(16)));
  const Halves halves = __builtin_convertvector((Words)Bf16Bits(x) >> 16, Halves);
  std::memcpy(to, &halves, sizeof(halves));
}

}  // namespace augur
