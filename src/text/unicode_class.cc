#include "text/unicode_class.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <vector>

namespace augur {
namespace {

constexpr char32_t kCodePoints = 0x110000;
constexpr char32_t kLettersEnd = 0x40000;  // planes 4 to 16 hold neither letters nor numbers

struct Range {
  char32_t first, last;
};

constexpr Range kSpaces[] = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                             {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                             {0x205F, 0x205F}, {0x3000, 0x3000}};

// Letters and numbers that Unicode 15, 15.1 and 16 added to Unicode 14.
constexpr Range kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D4A, 0x10D65},
    {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x1123F, 0x11240}, {0x11380, 0x11389}, {0x1138B, 0x1138B},
    {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3},
    {0x11BC0, 0x11BE0}, {0x11F02, 0x11F02}, {0x11F04, 0x11F10}, {0x11F12, 0x11F33}, {0x1342F, 0x1342F},
    {0x13441, 0x13446}, {0x13460, 0x143FA}, {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF},
    {0x1B132, 0x1B132}, {0x1B155, 0x1B155}, {0x1DF25, 0x1DF2A}, {0x1E030, 0x1E06D}, {0x1E4D0, 0x1E4EB},
    {0x1E5D0, 0x1E5ED}, {0x1E5F0, 0x1E5F0}, {0x2B739, 0x2B739}, {0x2EBF0, 0x2EE5D}, {0x31350, 0x323AF}};
constexpr Range kNewNumbers[] = {
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x11F50, 0x11F59}, {0x16130, 0x16139},
    {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1D2C0, 0x1D2D3}, {0x1E4F0, 0x1E4F9}, {0x1E5F1, 0x1E5FA}};

constexpr Range kNumbersOfUnicode17[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};

// Word characters by other properties than their category: joiners and circled and squared Latin letters.
// Then the digits and marks that are newer than Unicode 15.
constexpr Range kOtherWordCharacters[] = {
    {0x200C, 0x200D},   {0x24B6, 0x24E9},   {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
    {0x897, 0x897},     {0x10D40, 0x10D49}, {0x10D69, 0x10D6D}, {0x10EFC, 0x10EFC}, {0x113B8, 0x113C0},
    {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D0}, {0x113D2, 0x113D2},
    {0x113E1, 0x113E2}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x11F5A, 0x11F5A}, {0x1611E, 0x16139},
    {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1E5EE, 0x1E5EF}, {0x1E5F1, 0x1E5FA}};

bool Contains(std::span<const Range> ranges, char32_t c) {
  return std::any_of(ranges.begin(), ranges.end(), [c](Range r) { return c >= r.first && c <= r.last; });
}

std::string InBrackets(std::span<const Range> ranges) {
  std::string out;
  for (const Range& r : ranges) {
    out +=
        fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<uint32_t>(r.first), static_cast<uint32_t>(r.last));
  }
  return out;
}

CharClass ClassByCategory(utf8proc_category_t category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    default:
      return CharClass::kOther;
  }
}

std::vector<CharClass> BuildClasses() {
  std::vector<CharClass> classes(kCodePoints);
  for (char32_t c = 0; c < kLettersEnd; ++c) {
    classes[c] = ClassByCategory(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
  }
  const auto fill = [&](std::span<const Range> ranges, CharClass value) {
    for (const Range& r : ranges) std::fill(&classes[r.first], &classes[r.last] + 1, value);
  };
  fill(kNewLetters, CharClass::kLetter);
  fill(kNewNumbers, CharClass::kNumber);
  fill(kSpaces, CharClass::kSpace);
  return classes;
}

}  // namespace

const CharClass* CharClasses() {
  static const std::vector<CharClass> classes = BuildClasses();
  return classes.data();
}

bool IsNumeric(char32_t c) {
  return CharClasses()[c] == CharClass::kNumber || Contains(kNumbersOfUnicode17, c);
}

bool IsWordCharacter(char32_t c) {
  if (CharClasses()[c] == CharClass::kLetter) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return Contains(kOtherWordCharacters, c);
  }
}

const std::string& SpaceRanges() {
  static const std::string ranges = InBrackets(kSpaces);
  return ranges;
}

const std::string& NewLetterRanges() {
  static const std::string ranges = InBrackets(kNewLetters);
  return ranges;
}

const std::string& NewNumberRanges() {
  static const std::string ranges = InBrackets(kNewNumbers);
  return ranges;
}

}  // namespace augur
