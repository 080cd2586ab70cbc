#include "reward/math_strict.h"

#include "reward/final_answer.h"
#include "reward/math_form.h"
#include "reward/python_text.h"

namespace augur {

std::optional<std::string_view> MathStrictAnswer(std::string_view response) {
  if (const auto marked = FinalAnswer(response)) return marked;
  const std::string_view line = PythonStrip(response);
  if (line.empty() || line.find('\n') != std::string_view::npos) return std::nullopt;
  const bool one_word = line.find(' ') == std::string_view::npos;
  const bool has_digit = line.find_first_of("0123456789") != std::string_view::npos;
  return one_word || has_digit ? std::optional(line) : std::nullopt;
}

double ScoreMathStrict(std::string_view response, std::string_view ground_truth) {
  const auto marked = FinalAnswer(response);
  const std::string_view stripped = PythonStrip(response);
  if (!marked && stripped.find('\n') != std::string_view::npos) return 0.0;
  return SameAnswer(CanonicalForm(marked.value_or(stripped)), CanonicalForm(ground_truth)) ? 1.0 : 0.0;
}

}  // namespace augur
