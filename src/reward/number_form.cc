#include "reward/number_form.h"

#include <fmt/format.h>

#include <algorithm>

#include "reward/rational.h"

namespace augur {
namespace {

constexpr size_t kMostDigits = 18;  // 10^18 fits 64 bits

bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

// Takes what it recognises from the front of a text.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool done() const { return text_.empty(); }

  bool Take(std::string_view prefix) {
    if (!text_.starts_with(prefix)) return false;
    text_.remove_prefix(prefix.size());
    return true;
  }

  std::string_view Digits() {
    const auto end = std::find_if_not(text_.begin(), text_.end(), IsAsciiDigit);
    const std::string_view digits(text_.data(), static_cast<size_t>(end - text_.begin()));
    text_.remove_prefix(digits.size());
    return digits;
  }

 private:
  std::string_view text_;
};

// An unsigned decimal without superfluous zeros: whole has no leading ones, fraction no trailing ones.
struct Decimal {
  std::string_view whole, fraction;
};

std::optional<Decimal> ReadDecimal(Reader* reader) {
  Decimal decimal{reader->Digits(), {}};
  const bool has_whole = !decimal.whole.empty();
  if (reader->Take(".")) decimal.fraction = reader->Digits();
  if (!has_whole && decimal.fraction.empty()) return std::nullopt;
  decimal.whole.remove_prefix(std::min(decimal.whole.find_first_not_of('0'), decimal.whole.size()));
  decimal.fraction = decimal.fraction.substr(0, decimal.fraction.find_last_not_of('0') + 1);
  return decimal;
}

std::optional<Rational> Exact(const Decimal& decimal) {
  if (decimal.whole.size() + decimal.fraction.size() > kMostDigits) return std::nullopt;
  int64_t numerator = 0, denominator = 1;
  for (const char c : decimal.whole) numerator = numerator * 10 + (c - '0');
  for (const char c : decimal.fraction) {
    numerator = numerator * 10 + (c - '0');
    denominator *= 10;
  }
  return MakeRational(numerator, denominator);
}

std::string Text(bool negative, const Rational& value) {
  const int64_t numerator = negative ? -value.numerator : value.numerator;
  if (value.denominator == 1) return fmt::format("{}", numerator);
  return fmt::format("{}/{}", numerator, value.denominator);
}

std::string Text(bool negative, const Decimal& value) {
  return fmt::format("{}{}{}{}", negative ? "-" : "", value.whole.empty() ? "0" : value.whole,
                     value.fraction.empty() ? "" : ".", value.fraction);
}

// {a}{b}, what follows \frac. A sign in either turns *negative over.
std::optional<Rational> ReadFraction(Reader* reader, bool* negative) {
  if (!reader->Take("{")) return std::nullopt;
  if (reader->Take("-")) *negative = !*negative;
  const auto numerator = ReadDecimal(reader);
  if (!numerator || !reader->Take("}{")) return std::nullopt;
  if (reader->Take("-")) *negative = !*negative;
  const auto denominator = ReadDecimal(reader);
  if (!denominator || !reader->Take("}")) return std::nullopt;
  const auto a = Exact(*numerator), b = Exact(*denominator);
  return a && b ? Divide(*a, *b) : std::nullopt;
}

// What may follow a whole or decimal number: nothing, /b, or the fraction of a mixed number.
std::optional<Rational> ReadRest(Reader* reader, const Rational& first) {
  if (reader->done()) return first;
  if (reader->Take("/")) {
    const auto denominator = ReadDecimal(reader);
    const auto b = denominator ? Exact(*denominator) : std::nullopt;
    return b ? Divide(first, *b) : std::nullopt;
  }
  std::optional<Rational> part;
  bool negative = false;
  if (reader->Take("\\frac")) {
    part = ReadFraction(reader, &negative);
  } else if (reader->Take(" ")) {
    const auto numerator = ReadDecimal(reader);
    const bool slash = reader->Take("/");
    const auto denominator = ReadDecimal(reader);
    if (!numerator || !slash || !denominator) return std::nullopt;
    const auto a = Exact(*numerator), b = Exact(*denominator);
    part = a && b ? Divide(*a, *b) : std::nullopt;
  }
  const bool proper = part && !negative && part->numerator < part->denominator && first.denominator == 1;
  return proper ? Add(first, *part) : std::nullopt;
}

}  // namespace

std::optional<std::string> CanonicalNumber(std::string_view text) {
  Reader reader(text);
  bool negative = reader.Take("-");
  if (!negative) reader.Take("+");
  std::optional<Rational> value;
  if (reader.Take("\\frac")) {
    value = ReadFraction(&reader, &negative);
  } else {
    const auto first = ReadDecimal(&reader);
    if (!first) return std::nullopt;
    const auto exact = Exact(*first);
    if (!exact) return reader.done() ? std::optional(Text(negative, *first)) : std::nullopt;
    value = ReadRest(&reader, *exact);
  }
  if (!value || !reader.done()) return std::nullopt;
  return Text(negative, *value);
}

}  // namespace augur
