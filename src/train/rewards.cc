#include "train/rewards.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace augur {
namespace {

struct SourcePattern {
  std::string_view part, verifier;
};
constexpr SourcePattern kPatterns[] = {
    {"gsm8k", "gsm8k"},        {"countdown", "countdown"},
    {"sort", "exact"},         {"arithmetic", "gsm8k_flexible"},
    {"aime", "math_dapo"},     {"amc", "math_dapo"},
    {"dapo", "math_dapo"},     {"math", "math_dapo"},
    {"olympiad", "math_dapo"},
};

}  // namespace

const Verifier& VerifierForSource(std::string_view data_source, std::string_view where) {
  std::string name(data_source);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const SourcePattern& pattern : kPatterns) {
    if (name.find(pattern.part) != std::string::npos) return FindVerifier(pattern.verifier, where);
  }
  throw Error(where, fmt::format("no verifier is known for the data source '{}'", data_source),
              "set reward.verifier (augur verify --help lists them)");
}

const Verifier& VerifierFor(const RewardSection& reward, const Prompt& prompt) {
  if (reward.verifier == "auto") return VerifierForSource(prompt.data_source, prompt.Where());
  return FindVerifier(reward.verifier, "reward.verifier");
}

Score ScoreResponse(const RewardSection& reward, const Prompt& prompt, std::string_view response) {
  const Verifier& verifier = VerifierFor(reward, prompt);
  try {
    const double value = verifier.score(response, prompt.ground_truth);
    return {value, value == verifier.right, false};
  } catch (const std::exception&) {
    return {reward.error_score, false, true};
  }
}

}  // namespace augur
