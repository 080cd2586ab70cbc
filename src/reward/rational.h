// Exact fractions of 64-bit integers.
#pragma once

#include <cstdint>
#include <optional>

namespace augur {

// In lowest terms with a positive denominator, so equal values have equal fields.
struct Rational {
  int64_t numerator = 0;
  int64_t denominator = 1;
  bool operator==(const Rational&) const = default;
};

// Each is nothing where the exact result does not fit, and on division by zero.
std::optional<Rational> MakeRational(__int128 numerator, __int128 denominator);
std::optional<Rational> Add(const Rational& a, const Rational& b);
std::optional<Rational> Subtract(const Rational& a, const Rational& b);
std::optional<Rational> Multiply(const Rational& a, const Rational& b);
std::optional<Rational> Divide(const Rational& a, const Rational& b);

}  // namespace augur
