#include "reward/advantage.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"

namespace augur {
namespace {

constexpr double kStdFloor = 1e-6;       // verl's, added to the standard deviation
constexpr double kVarianceFloor = 1e-8;  // verl's, added to the variance

double FromMean(const RewardGroup& group, double reward) { return reward - group.mean(); }

double FromMeanInDeviations(const RewardGroup& group, double reward) {
  return (reward - group.mean()) / (group.deviation() + kStdFloor);
}

double FromMeanOfOthers(const RewardGroup& group, double reward) {
  return (reward - group.mean()) * static_cast<double>(group.count) / static_cast<double>(group.count - 1);
}

// Every token carries its response's value.
void WhitenOverTokens(std::span<const ScoredResponse> responses, std::vector<double>* values) {
  double tokens = 0, sum = 0, squares = 0;
  const auto weight = [&](size_t i) {
    return std::isnan(responses[i].reward) ? 0 : static_cast<double>(responses[i].tokens);
  };
  for (size_t i = 0; i < responses.size(); ++i) {
    tokens += weight(i);
    sum += weight(i) * (*values)[i];
  }
  if (tokens < 2) return;
  const double mean = sum / tokens;
  for (size_t i = 0; i < responses.size(); ++i) {
    squares += weight(i) * ((*values)[i] - mean) * ((*values)[i] - mean);
  }
  const double scale = 1 / std::sqrt(squares / (tokens - 1) + kVarianceFloor);
  for (size_t i = 0; i < responses.size(); ++i) {
    if (!std::isnan(responses[i].reward)) (*values)[i] = ((*values)[i] - mean) * scale;
  }
}

constexpr AdvantageEstimator kEstimators[] = {
    {"grpo", "(R - mean) / (std + 1e-6) of the group", true, FromMeanInDeviations, nullptr},
    {"grpo_no_std", "R - mean of the group", true, FromMean, nullptr},
    {"dr_grpo", "the same, for the aggregation seq-mean-token-sum-norm", true, FromMean, nullptr},
    {"rloo", "R - mean of the group's others", true, FromMeanOfOthers, nullptr},
    {"reinforce_pp", "R - mean of the group, then normalised over the tokens of the batch", false, FromMean,
     WhitenOverTokens},
};

std::map<int64_t, RewardGroup> Groups(std::span<const ScoredResponse> responses) {
  std::map<int64_t, RewardGroup> groups;
  for (const ScoredResponse& r : responses) groups[r.group].Add(r.reward);
  for (const ScoredResponse& r : responses) {
    if (std::isnan(r.reward)) continue;
    RewardGroup& group = groups[r.group];
    group.squares += (r.reward - group.mean()) * (r.reward - group.mean());
  }
  return groups;
}

}  // namespace

void RewardGroup::Add(double reward) {
  ++size;
  if (std::isnan(reward)) return;
  if (count++ == 0) first = reward;
  sum += reward;
  differ = differ || reward != first;
}

double RewardGroup::deviation() const { return std::sqrt(squares / static_cast<double>(count - 1)); }

const AdvantageEstimator& FindAdvantage(std::string_view name) {
  for (const AdvantageEstimator& estimator : kEstimators) {
    if (estimator.name == name) return estimator;
  }
  throw UnknownName("algorithm.advantage", "estimator", name, AdvantageNames());
}

std::span<const std::string_view> AdvantageNames() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const AdvantageEstimator& estimator : kEstimators) all.push_back(estimator.name);
    return all;
  }();
  return names;
}

std::string AdvantageDescriptions() {
  std::string text;
  for (const AdvantageEstimator& e : kEstimators) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", e.name, e.description);
  }
  return text + ".";
}

std::vector<double> ComputeAdvantages(std::string_view estimator, std::span<const ScoredResponse> responses) {
  const AdvantageEstimator& chosen = FindAdvantage(estimator);
  const std::map<int64_t, RewardGroup> groups = Groups(responses);
  std::vector<double> advantages;
  advantages.reserve(responses.size());
  for (const ScoredResponse& r : responses) {
    const RewardGroup& group = groups.at(r.group);
    if (std::isnan(r.reward) || group.equal()) {
      advantages.push_back(0);
    } else {
      advantages.push_back(group.size > 1 ? chosen.within_group(group, r.reward) : r.reward);
    }
  }
  if (chosen.over_batch != nullptr) chosen.over_batch(responses, &advantages);
  return advantages;
}

std::vector<bool> InEqualGroup(std::span<const ScoredResponse> responses) {
  const std::map<int64_t, RewardGroup> groups = Groups(responses);
  std::vector<bool> equal;
  equal.reserve(responses.size());
  for (const ScoredResponse& r : responses) equal.push_back(groups.at(r.group).equal());
  return equal;
}

double OverlongPenalty(int64_t tokens, int64_t longest, int64_t buffer, double penalty) {
  if (buffer <= 0) return 0;
  const int64_t over = std::clamp<int64_t>(tokens - (longest - buffer), 0, buffer);
  return -penalty * static_cast<double>(over) / static_cast<double>(buffer);
}

}  // namespace augur
