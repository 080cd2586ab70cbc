#include "reward/gsm8k.h"

#include <algorithm>
#include <optional>

#include "reward/python_text.h"

namespace augur {
namespace {

constexpr size_t kGsm8kTail = 300;
constexpr std::string_view kNumberCharacters = "0123456789.,";

// What -?[0-9.,]+ matches at `offset`; empty where it does not match.
std::string_view NumberAt(std::string_view text, size_t offset) {
  const size_t sign = offset < text.size() && text[offset] == '-' ? 1 : 0;
  const size_t end = std::min(text.find_first_not_of(kNumberCharacters, offset + sign), text.size());
  return end > offset + sign ? text.substr(offset, end - offset) : std::string_view();
}

}  // namespace

std::optional<std::string> Gsm8kAnswer(std::string_view response) {
  constexpr std::string_view kMark = "#### ";
  const std::string_view text = LastCodePoints(response, kGsm8kTail);
  // Neither the mark nor a number holds the other's characters, so searching from the end finds the match
  // that a search from the beginning finds last.
  for (size_t at = text.rfind(kMark); at != std::string_view::npos; at = text.rfind(kMark, at - 1)) {
    const std::string_view number = NumberAt(text, at + kMark.size());
    if (!number.empty()) return ReplaceAll(number, ",", "");
    if (at == 0) break;
  }
  return std::nullopt;
}

std::optional<std::string> Gsm8kFlexibleAnswer(std::string_view response) {
  const std::string_view text = LastCodePoints(response, kGsm8kTail);
  // The last number that is not a lone full stop; where there are only full stops, one of those.
  std::optional<std::string_view> chosen;
  for (size_t i = 0; i < text.size();) {
    const std::string_view number = NumberAt(text, i);
    if (!number.empty() && (number != "." || !chosen)) chosen = number;
    i += std::max<size_t>(number.size(), 1);
  }
  return chosen ? std::optional<std::string>(*chosen) : std::nullopt;
}

double ScoreGsm8k(std::string_view response, std::string_view ground_truth) {
  return Gsm8kAnswer(response) == ground_truth ? 1.0 : 0.0;
}

double ScoreGsm8kFlexible(std::string_view response, std::string_view ground_truth) {
  return Gsm8kFlexibleAnswer(response) == ground_truth ? 1.0 : 0.0;
}

}  // namespace augur
