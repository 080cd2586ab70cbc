// From the rewards of groups of responses to advantages, one per response, in float64.
//
// An estimator is one entry of the list in advantage.cc; the configuration, its documentation and the trainer
// read it there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace augur {

// One response as the advantage sees it.
struct ScoredResponse {
  double reward = 0;   // NaN: not scored
  int64_t group = 0;   // responses to one prompt share it; any numbering
  int64_t tokens = 0;  // of the response
};

// The rewards of one group.
struct RewardGroup {
  int64_t size = 0, count = 0;             // all responses; those that are scored, which the rest is about
  double sum = 0, first = 0, squares = 0;  // squares: of the differences from the mean
  bool differ = false;

  void Add(double reward);  // NaN: not scored
  // Whether all scores are the same or none is one, so that nothing can be learned from comparing them. A
  // response alone has none to be compared with.
  bool equal() const { return size > 1 && !differ; }
  double mean() const { return sum / static_cast<double>(count); }
  double deviation() const;  // by count - 1
};

struct AdvantageEstimator {
  std::string_view name, description;
  bool needs_group;  // compares responses to one prompt with each other
  // Of a response within its group, which has others and differing rewards.
  double (*within_group)(const RewardGroup& group, double reward);
  // Then over the whole batch; null for none.
  void (*over_batch)(std::span<const ScoredResponse> responses, std::vector<double>* advantages);
};

// Throws Error with the nearest name for an unknown one.
const AdvantageEstimator& FindAdvantage(std::string_view name);
std::span<const std::string_view> AdvantageNames();
// "grpo: (R - mean) / std of the group; ..."
std::string AdvantageDescriptions();

// In the order of the responses. A response alone in its group has no baseline: its reward is its advantage,
// as in verl. A group whose rewards are all equal gets exact zeros, whatever rounding does to their mean.
// A response that is not scored gets 0 and has no part in any mean, as in TRL.
std::vector<double> ComputeAdvantages(std::string_view estimator, std::span<const ScoredResponse> responses);

// RewardGroup::equal() of the response's group, by response.
std::vector<bool> InEqualGroup(std::span<const ScoredResponse> responses);

// DAPO's soft punishment of long responses: 0 up to `longest` - `buffer` tokens, then falling linearly to
// -penalty at `longest` and beyond. 0 where buffer is 0.
double OverlongPenalty(int64_t tokens, int64_t longest, int64_t buffer, double penalty);

}  // namespace augur
