// One spelling for LaTeX that looks the same on paper.
#pragma once

#include <string>
#include <string_view>

namespace augur {

// Stands where \text{ and its closing brace stood, so that a unit can still be told from a product.
inline constexpr char kTextMark = '\x01';

// Removes math delimiters, sizing, spacing and font commands; spells lookalike characters in ASCII or LaTeX;
// braces the arguments of \frac and \sqrt and unbraces single exponents; joins thousands; drops every space
// except between two digits or two letters. Nothing recurses; callers bound the length.
std::string PlainLatex(std::string_view text);

}  // namespace augur
