// Scores of responses, whatever becomes of the verifier.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/prompt.h"
#include "reward/verifier.h"

namespace augur {

// reward.verifier, auto resolved by the prompt's data source. Throws Error where that suggests none.
const Verifier& VerifierFor(const RewardSection& reward, const Prompt& prompt);

struct Score {
  double value = 0;
  bool right = false;   // what the verifier gives a correct response
  bool failed = false;  // the verifier threw; value is reward.error_score
};

Score ScoreResponse(const RewardSection& reward, const Prompt& prompt, std::string_view response);

}  // namespace augur
