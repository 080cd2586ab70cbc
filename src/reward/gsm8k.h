// The scorers of GSM8K as verl 0.9.1 computes them (verl.utils.reward_score.gsm8k), quirks included. Both
// read the response's last 300 code points and give 1.0 or 0.0.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace augur {

// The last number after "#### ", without its commas; nothing where there is none.
std::optional<std::string> Gsm8kAnswer(std::string_view response);

// The last number anywhere, commas kept.
std::optional<std::string> Gsm8kFlexibleAnswer(std::string_view response);

// Those answers compared with the ground truth to the letter.
double ScoreGsm8k(std::string_view response, std::string_view ground_truth);
double ScoreGsm8kFlexible(std::string_view response, std::string_view ground_truth);

}  // namespace augur
