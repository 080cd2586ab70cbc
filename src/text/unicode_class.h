// Character classes as the regular expressions of tokenizers see them.
//
// They are those of Unicode 16, which the `tokenizers` package uses, whatever version the system's libraries
// know: where ours lags behind, the newer ranges are added here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace augur {

enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };  // everything else, \p{L}, \p{N}, \s

// One entry for each code point up to U+10FFFF; built on first use.
const CharClass* CharClasses();

// What the Digits pre-tokenizer splits off: \p{N} of Unicode 17.
bool IsNumeric(char32_t c);

// \w, by which an added token with `single_word` judges its neighbours.
bool IsWordCharacter(char32_t c);

// Ranges "\x{..}-\x{..}" in PCRE2's notation, to stand inside brackets: all of \s, and the letters and
// numbers newer than Unicode 14, the version of PCRE2 10.42.
const std::string& SpaceRanges();
const std::string& NewLetterRanges();
const std::string& NewNumberRanges();

// Decodes the character at text[*offset], moving past it. `text` must be valid UTF-8.
inline char32_t DecodeValid(std::string_view text, size_t* offset) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + *offset;
  if (p[0] < 0x80) {
    *offset += 1;
    return p[0];
  }
  if (p[0] < 0xE0) {
    *offset += 2;
    return (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
  }
  if (p[0] < 0xF0) {
    *offset += 3;
    return (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
  }
  *offset += 4;
  return (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}

}  // namespace augur
