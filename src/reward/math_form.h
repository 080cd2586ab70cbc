// The canonical form of a mathematical answer: one text for every way of writing the same thing that people
// and models use, and different texts for different answers.
#pragma once

#include <string>
#include <string_view>

namespace augur {

struct MathForm {
  // Numbers are exact fractions in lowest terms ("42", "-1/2"), or canonical decimals where longer than 64
  // bits. Everything else is LaTeX with its spelling variants removed. Empty: no answer.
  std::string value;
  // What a number is counted in: "%", "°", "cm". Empty for none.
  std::string unit;
};

// Answers longer than kLongestAnswer bytes have no canonical form. What it treats as the same:
//   42  42.  42.0  042  +42  **42**  $42$  \(42\)  \text{42}  \boxed{42}  x = 42  \$42  1,234 and 1234
//   -1 with any of Unicode's minus signs; full-width letters and digits and their plain forms
//   1/2  \frac12  \dfrac{1}{2}  0.5  and 1\frac12  1 1/2  3/2
//   (1, 2) and \left(1,2\right); x^{2} and x^2; (C) and C; words in capitals or not
// A space between two digits is never ignored: "4 2" is not 42.
inline constexpr size_t kLongestAnswer = 2000;
MathForm CanonicalForm(std::string_view text);

// Equal values, and units that do not contradict each other: "90" and "90^\circ" agree, "5 cm" and "5 m" do
// not.
bool SameAnswer(const MathForm& a, const MathForm& b);

}  // namespace augur
