// Checked arithmetic on sizes that come from files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace augur {

// a × b, or nothing where it overflows.
inline std::optional<uint64_t> CheckedProduct(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline std::optional<uint64_t> CheckedSum(uint64_t a, uint64_t b) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// The product of all dimensions (1 for a scalar), or nothing where it passes 2^63 - 1 before a zero comes.
inline std::optional<uint64_t> ElementCount(std::span<const int64_t> shape) {
  uint64_t count = 1;
  for (const int64_t extent : shape) {
    const auto next = CheckedProduct(count, static_cast<uint64_t>(extent));
    if (extent < 0 || !next || *next > INT64_MAX) return std::nullopt;
    count = *next;
  }
  return count;
}

}  // namespace augur
