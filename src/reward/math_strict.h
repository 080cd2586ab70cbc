// A scorer that judges the mathematics of an answer and not its spelling.
#pragma once

#include <optional>
#include <string_view>

namespace augur {

// 1.0 if the response's final answer (FinalAnswer, or a response of a single line) and the ground truth have
// the same canonical form (math_form.h), else 0.0.
double ScoreMathStrict(std::string_view response, std::string_view ground_truth);

// What it reads; nothing where a response marks no answer and is more than a number, a formula or a word.
std::optional<std::string_view> MathStrictAnswer(std::string_view response);

}  // namespace augur
