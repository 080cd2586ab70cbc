// Where in a response the answer stands.
#pragma once

#include <optional>
#include <string_view>

namespace augur {

// The last answer a response commits to, as a part of it: the content of a \boxed{...} whose braces close, or
// what follows "Answer:" (any case, colon of either width, Markdown emphasis around it) to the end of the
// line or of the displayed formula. Of several, the one that begins last. Nothing where there is neither.
// Linear in the response.
std::optional<std::string_view> FinalAnswer(std::string_view response);

// The last line that holds more than white space; empty if there is none.
std::string_view LastLine(std::string_view response);

}  // namespace augur
