// The canonical text of a number.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace augur {

// Reads an integer, a decimal, a/b, \frac{a}{b}, or a mixed number (1\frac{1}{2}, 1 1/2), with a sign before
// it or inside \frac and no other spaces; gives "n" or "n/d" in lowest terms. Nothing if the text is not
// one of these. A number of more than 18 digits keeps its decimal text without superfluous zeros.
std::optional<std::string> CanonicalNumber(std::string_view text);

}  // namespace augur
