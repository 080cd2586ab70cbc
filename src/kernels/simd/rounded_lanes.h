// Rounding whole vectors to the element types, for kernels that hold values as floats.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/simd/element.h"
#include "kernels/simd/vector_math.h"

namespace augur {
inline namespace AUGUR_LANES {

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

// BFloat16 where the machine rounds to it by an instruction, that is, on Isa::kBfmmla. The results are the
// same.
struct MachineBf16 {};

typedef uint16_t Halves __attribute__((vector_size(2 * kFloats)));

// The lanes as T, BFloat16 or MachineBf16.
template <typename T>
inline Halves ToBf16(Floats x) {
#if defined(__aarch64__)
  if constexpr (std::is_same_v<T, MachineBf16>) {
    Halves halves;
    asm(".arch_extension bf16\n\tbfcvtn %0.4h, %1.4s" : "=w"(halves) : "w"(x));
    return halves;
  }
#endif
  typedef uint32_t Words __attribute__((vector_size(4 * kFloats)));
  return __builtin_convertvector((Words)Bf16Bits(x) >> 16, Halves);
}

// Each lane rounded to T, as a float again.
template <typename T>
inline Floats Rounded(Floats x) {
#if defined(__aarch64__)
  if constexpr (std::is_same_v<T, MachineBf16>) {
    return (Floats)vshll_n_u16((uint16x4_t)ToBf16<MachineBf16>(x), 16);
  }
#endif
  if constexpr (std::is_same_v<T, float>) return x;
  return (Floats)Bf16Bits(x);
}

template <typename T>
inline float Rounded(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  return BFloat16::From(x);
}

// As many neighbouring bfloat16 as there are lanes.
template <typename T = BFloat16>
inline void StoreBf16(Floats x, uint16_t* to) {
  const Halves halves = ToBf16<T>(x);
  std::memcpy(to, &halves, sizeof(halves));
}

}  // namespace AUGUR_LANES
}  // namespace augur
