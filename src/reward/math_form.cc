#include "reward/math_form.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "reward/latex_form.h"
#include "reward/number_form.h"
#include "reward/python_text.h"

namespace augur {
namespace {

bool IsAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Words that may follow a number as what it counts; anything inside \text{} may, too.
constexpr std::string_view kUnits[] = {
    "%",        "\u00B0",  "percent", "degree", "degrees",      "dollar",      "dollars", "cent",
    "cents",    "cm",      "mm",      "km",     "kg",           "inch",        "inches",  "foot",
    "feet",     "meter",   "meters",  "mile",   "miles",        "mph",         "second",  "seconds",
    "minute",   "minutes", "hour",    "hours",  "day",          "days",        "week",    "weeks",
    "year",     "years",   "unit",    "units",  "square units", "cubic units", "ways",    "pounds",
    "students", "people",  "edges",   "digits", "integers",     "multiples",   "meals",   "tickets",
    "gm",       "points"};

// Without Markdown emphasis, quotation marks and the full stop of a sentence around it.
std::string_view TrimMarkup(std::string_view text) {
  constexpr std::string_view kFront = " *_`\"", kBack = " *_`\".,;:";
  text.remove_prefix(std::min(text.find_first_not_of(kFront), text.size()));
  return text.substr(0, text.find_last_not_of(kBack) + 1);
}

// A name an answer may be assigned to: x, \theta, x_1, f(x), or none.
bool IsVariable(std::string_view name) {
  if (name.empty()) return true;
  if (name.starts_with('\\'))
    return name.size() > 1 && std::all_of(name.begin() + 1, name.end(), IsAsciiLetter);
  if (!IsAsciiLetter(name[0])) return false;
  if (name.size() == 1) return true;
  if (name.size() == 3) return name[1] == '_';
  return name.size() == 4 && name[1] == '(' && IsAsciiLetter(name[2]) && name[3] == ')';
}

std::string_view WithoutAssignment(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || text.find('=', equals + 1) != std::string_view::npos) return text;
  return IsVariable(TrimMarkup(text.substr(0, equals))) ? TrimMarkup(text.substr(equals + 1)) : text;
}

std::string CanonicalUnit(std::string_view unit) {
  if (unit == "percent") return "%";
  if (unit == "degree" || unit == "degrees") return "\u00B0";
  return std::string(unit);
}

// `text` as a number and the unit that takes its last `length` bytes, with or without marks around it.
std::optional<MathForm> SplitUnit(std::string_view text, size_t length, std::string_view unit) {
  const auto number = CanonicalNumber(TrimMarkup(text.substr(0, text.size() - length)));
  if (!number) return std::nullopt;
  return MathForm{*number, CanonicalUnit(TrimMarkup(unit))};
}

// "5 cm", "5%", "90\u00B0", or a number before \text{...}; nothing where no number comes before a unit.
std::optional<MathForm> NumberWithUnit(std::string_view text) {
  if (text.ends_with(kTextMark)) {
    const size_t mark = text.substr(0, text.size() - 1).rfind(kTextMark);
    if (mark == std::string_view::npos) return std::nullopt;
    return SplitUnit(text, text.size() - mark, text.substr(mark + 1, text.size() - mark - 2));
  }
  for (const std::string_view unit : kUnits) {
    if (!text.ends_with(unit)) continue;
    if (auto form = SplitUnit(text, unit.size(), unit)) return form;
  }
  return std::nullopt;
}

// Every number that stands alone between brackets and commas in its canonical form.
std::string CanonicalParts(std::string_view text) {
  constexpr std::string_view kSeparators = "()[],";
  std::string out;
  while (true) {
    const size_t end = std::min(text.find_first_of(kSeparators), text.size());
    const std::string_view part = text.substr(0, end);
    out += CanonicalNumber(part).value_or(std::string(part));
    if (end == text.size()) return out;
    out += text[end];
    text.remove_prefix(end + 1);
  }
}

// A choice without its parentheses, and a word or phrase in lower case. Two letters may be a product of two
// quantities, whose case matters.
std::string CanonicalWords(std::string text) {
  if (text.size() == 3 && text[0] == '(' && IsAsciiLetter(text[1]) && text[2] == ')')
    return text.substr(1, 1);
  const bool words =
      text.size() > 2 && std::ranges::all_of(text, [](char c) { return IsAsciiLetter(c) || c == ' '; });
  if (words) std::ranges::transform(text, text.begin(), [](char c) { return c | 0x20; });
  return text;
}

}  // namespace

MathForm CanonicalForm(std::string_view text) {
  text = PythonStrip(text);
  if (text.size() > kLongestAnswer) return {};
  const std::string latex = PlainLatex(text);
  const std::string_view answer = WithoutAssignment(TrimMarkup(latex));
  if (auto counted = NumberWithUnit(answer)) return *std::move(counted);
  const std::string mark(1, kTextMark);
  const std::string listed = ReplaceAll(ReplaceAll(answer, mark + "and" + mark, ","), ",,", ",");
  const std::string unmarked = ReplaceAll(listed, mark, "");
  const std::string_view value = TrimMarkup(unmarked);
  if (auto counted = NumberWithUnit(value)) return *std::move(counted);
  return {CanonicalWords(CanonicalParts(value)), ""};
}

bool SameAnswer(const MathForm& a, const MathForm& b) {
  const bool units_agree = a.unit == b.unit || a.unit.empty() || b.unit.empty();
  return !a.value.empty() && a.value == b.value && units_agree;
}

}  // namespace augur
