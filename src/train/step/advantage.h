// From the rewards of groups of responses to advantages, one per response, in float64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/options.h"

namespace augur {

// One response as the advantage sees it.
struct ScoredResponse {
  double reward = 0;
  int64_t group = 0;   // responses to one prompt share it; any numbering
  int64_t tokens = 0;  // of the response; only reinforce_pp reads it
};

// In the order of the responses. With r the reward, m and s the mean and the (n - 1) standard deviation of
// its group of n:
//   grpo                  (r - m) / (s + 1e-6)
//   grpo_no_std, dr_grpo  r - m (Dr.GRPO's other half is the aggregation seq-mean-token-sum-norm)
//   rloo                  r - the mean of the group's others = (r - m) n / (n - 1)
//   reinforce_pp          r - m, then whitened over all response tokens of the batch: minus their mean,
//   divided
//                         by sqrt(their (T - 1) variance + 1e-8)
// A response alone in its group has no baseline: its reward is its advantage,
// as in verl. A group whose rewards are all equal gets exact zeros, whatever rounding does to their mean.
std::vector<double> ComputeAdvantages(AdvantageKind kind, std::span<const ScoredResponse> responses);

// Whether all rewards of the response's group are the same (and the group has more than one), by response.
std::vector<bool> InEqualGroup(std::span<const ScoredResponse> responses);

// DAPO's soft punishment of long responses: 0 up to `longest` - `buffer` tokens, then falling linearly to
// -penalty at `longest` and beyond. 0 where buffer is 0.
double OverlongPenalty(int64_t tokens, int64_t longest, int64_t buffer, double penalty);

}  // namespace augur
