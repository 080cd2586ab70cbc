#include "reward/math_strict.h"

#include "reward/final_answer.h"
#include "reward/math_form.h"
#include "reward/python_text.h"

namespace augur {

double ScoreMathStrict(std::string_view response, std::string_view ground_truth) {
  const auto marked = FinalAnswer(response);
  const std::string_view stripped = PythonStrip(response);
  if (!marked && stripped.find('\n') != std::string_view::npos) return 0.0;
  return SameAnswer(CanonicalForm(marked.value_or(stripped)), CanonicalForm(ground_truth)) ? 1.0 : 0.0;
}

}  // namespace augur
