// UTF-8: validation, decoding and encoding by code point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace augur {

inline constexpr char32_t kInvalidCodePoint = 0xFFFFFFFF;

// The code point at text[*offset], moving *offset past it. On an ill-formed sequence (overlong, surrogate,
// beyond U+10FFFF, cut off) returns kInvalidCodePoint and moves one byte. *offset must be within text.
char32_t NextCodePoint(std::string_view text, size_t* offset);

// Offset of the first ill-formed byte, or npos if the text is valid UTF-8.
size_t FirstInvalidUtf8(std::string_view text);

void AppendUtf8(std::string* out, char32_t code_point);

// `bytes` with every maximal ill-formed part replaced by one U+FFFD, as the Unicode standard recommends and
// Python and Rust do.
std::string LossyUtf8(std::string_view bytes);

// How many bytes at the end of `text` are the beginning of a character whose rest has not arrived yet (0 to
// 3).
size_t IncompleteUtf8Suffix(std::string_view text);

// Text of data, models, files and exceptions as a terminal may get it: control characters, but for line
// breaks and tabs, and ill-formed bytes as \\xNN.
std::string Visible(std::string_view text);

// The same in one line for an error message, line breaks and tabs too; what passes 200 bytes is cut off with
// "...".
std::string Printable(std::string_view text);

// The same between single quotes, for names.
inline std::string Quoted(std::string_view name) { return "'" + Printable(name) + "'"; }

}  // namespace augur
