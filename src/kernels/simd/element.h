// The element types of logits that the kernels read and write, without torch's headers.
#pragma once

#include <bit>
#include <cstdint>

namespace augur {

enum class ElementType { kFloat, kDouble, kBFloat16, kHalf };

// A bfloat16 as the upper half of a float.
struct BFloat16 {
  uint16_t bits;

  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

  // Rounds to nearest even; NaN stays NaN.
  static BFloat16 From(float value) {
    const auto wide = std::bit_cast<uint32_t>(value);
    if ((wide & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((wide >> 16) | 0x40)};
    return {static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16)};
  }
};

// A float rounded to the element type; back again it converts by itself.
template <typename T>
T FromFloat(float value);
template <>
inline float FromFloat<float>(float value) {
  return value;
}
template <>
inline BFloat16 FromFloat<BFloat16>(float value) {
  return BFloat16::From(value);
}

}  // namespace augur
