#include "reward/rational.h"

#include <limits>

namespace augur {
namespace {

// Products of two 64-bit fields, and sums of two such products, always fit.
using Wide = __int128;

Wide Magnitude(Wide a) { return a < 0 ? -a : a; }

Wide GreatestCommonDivisor(Wide a, Wide b) {
  while (b != 0) {
    const Wide rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

}  // namespace

std::optional<Rational> MakeRational(Wide numerator, Wide denominator) {
  if (denominator == 0) return std::nullopt;
  const Wide divisor = GreatestCommonDivisor(Magnitude(numerator), Magnitude(denominator));
  numerator /= denominator < 0 ? -divisor : divisor;
  denominator = Magnitude(denominator) / divisor;
  constexpr Wide kLargest = std::numeric_limits<int64_t>::max();
  if (Magnitude(numerator) > kLargest || denominator > kLargest) return std::nullopt;
  return Rational{static_cast<int64_t>(numerator), static_cast<int64_t>(denominator)};
}

std::optional<Rational> Add(const Rational& a, const Rational& b) {
  return MakeRational(Wide{a.numerator} * b.denominator + Wide{b.numerator} * a.denominator,
                      Wide{a.denominator} * b.denominator);
}

std::optional<Rational> Subtract(const Rational& a, const Rational& b) {
  return Add(a, {-b.numerator, b.denominator});
}

std::optional<Rational> Multiply(const Rational& a, const Rational& b) {
  return MakeRational(Wide{a.numerator} * b.numerator, Wide{a.denominator} * b.denominator);
}

std::optional<Rational> Divide(const Rational& a, const Rational& b) {
  return MakeRational(Wide{a.numerator} * b.denominator, Wide{a.denominator} * b.numerator);
}

}  // namespace augur
