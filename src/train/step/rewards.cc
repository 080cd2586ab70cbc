#include "train/step/rewards.h"

#include "base/error.h"

namespace augur {

const Verifier& VerifierFor(const RewardSection& reward, const Prompt& prompt) {
  if (reward.verifier != "auto") return FindVerifier(reward.verifier, "reward.verifier");
  const Verifier* found = VerifierForSource(prompt.data_source);
  if (found != nullptr) return *found;
  throw Error(prompt.Where(),
              fmt::format("no verifier is known for the data source '{}'", prompt.data_source),
              "set reward.verifier (augur verify --help lists them)");
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
