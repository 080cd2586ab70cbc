// The scorer of DAPO-Math as verl 0.9.1 computes it (verl.utils.reward_score.math_dapo), quirks included: it
// exists so that curves compare with other people's. For judging answers well, see math_strict.h.
#pragma once

#include <optional>
#include <string_view>

namespace augur {

// 1.0 or -1.0. The last line `Answer: ...` of the response's last 300 code points equals the ground truth
// after both are normalised; without such a line, as ScoreMathDapoBoxed.
double ScoreMathDapo(std::string_view response, std::string_view ground_truth);

// 1.0 or -1.0. The content of the last \boxed{...} within the last 100 code points is the ground truth to the
// letter.
double ScoreMathDapoBoxed(std::string_view response, std::string_view ground_truth);

// What those two read, as a part of the response; nothing where there is no answer.
std::optional<std::string_view> MathDapoAnswer(std::string_view response);
std::optional<std::string_view> MathDapoBoxedAnswer(std::string_view response);

}  // namespace augur
