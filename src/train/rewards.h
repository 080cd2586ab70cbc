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

// The verifier `auto` stands for: by the data source's name, gsm8k, countdown, exact for the sort task,
// math_dapo for AIME, AMC, MATH and DAPO. Throws Error for another.
const Verifier& VerifierForSource(std::string_view data_source, std::string_view where);

// reward.verifier, auto resolved for this prompt.
const Verifier& VerifierFor(const RewardSection& reward, const Prompt& prompt);

struct Score {
  double value = 0;
  bool right = false;   // what the verifier gives a correct response
  bool failed = false;  // the verifier threw; value is reward.error_score
};

Score ScoreResponse(const RewardSection& reward, const Prompt& prompt, std::string_view response);

}  // namespace augur
