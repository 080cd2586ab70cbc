// Countdown: reach a target with + - * / and parentheses, using each given number exactly once.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace augur {

// 1.0 or 0.0. The answer is {"numbers": [integers >= 0], "target": integer}, or the text of such an object;
// anything else throws Error. The expression is taken from the last <answer>...</answer>, else from where
// FinalAnswer finds it, else from the last line; it may go on with "= target". Operators may also be written
// \times \cdot \div and with Unicode's signs. Values are exact; an intermediate one beyond 64 bits, a
// division by zero, or anything that is not an expression scores 0.
double ScoreCountdown(std::string_view response, const Json& answer);

// The expression it reads, without spaces; nothing where what it reads is none.
std::optional<std::string> CountdownAnswer(std::string_view response);

}  // namespace augur
