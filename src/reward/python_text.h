// Text as Python's str and re see it, for scorers that must agree with ones written in Python. All functions
// take UTF-8, count in code points and are linear in the text.
#pragma once

#include <string>
#include <string_view>

namespace augur {

// str.isspace() and the regular expression \s.
bool IsPythonSpace(char32_t c);

// str.isdigit(): decimal digits of every script, and superscript, subscript and circled ones (Unicode 14, the
// version of Python 3.11).
bool IsPythonDigit(char32_t c);

// text[-count:]
std::string_view LastCodePoints(std::string_view text, size_t count);

// text.strip()
std::string_view PythonStrip(std::string_view text);

// Offset of the first code point at or after `offset` that is not white space.
size_t SkipPythonSpace(std::string_view text, size_t offset);

// text.replace(from, to); `from` is not empty.
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);

}  // namespace augur
