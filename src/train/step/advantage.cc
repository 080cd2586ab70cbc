#include "train/step/advantage.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace augur {
namespace {

constexpr double kStdFloor = 1e-6;       // verl's, added to the standard deviation
constexpr double kVarianceFloor = 1e-8;  // verl's, added to the variance

struct Group {
  int64_t count = 0;
  double sum = 0, first = 0, squares = 0;
  bool equal = true;

  double mean() const { return sum / static_cast<double>(count); }
  double deviation() const { return std::sqrt(squares / static_cast<double>(count - 1)); }
};

std::map<int64_t, Group> Groups(std::span<const ScoredResponse> responses) {
  std::map<int64_t, Group> groups;
  for (const ScoredResponse& r : responses) {
    Group& group = groups[r.group];
    if (group.count++ == 0) group.first = r.reward;
    group.sum += r.reward;
    group.equal = group.equal && r.reward == group.first;
  }
  for (const ScoredResponse& r : responses) {
    Group& group = groups[r.group];
    group.squares += (r.reward - group.mean()) * (r.reward - group.mean());
  }
  return groups;
}

double FromGroup(AdvantageKind kind, const Group& group, double reward) {
  if (group.count == 1) return reward;
  if (group.equal) return 0;
  const double difference = reward - group.mean();
  if (kind == AdvantageKind::kGrpo) return difference / (group.deviation() + kStdFloor);
  if (kind == AdvantageKind::kRloo) {
    return difference * static_cast<double>(group.count) / static_cast<double>(group.count - 1);
  }
  return difference;
}

// Every token carries its response's value.
void WhitenOverTokens(std::span<const ScoredResponse> responses, std::vector<double>* values) {
  double tokens = 0, sum = 0, squares = 0;
  for (size_t i = 0; i < responses.size(); ++i) {
    tokens += static_cast<double>(responses[i].tokens);
    sum += static_cast<double>(responses[i].tokens) * (*values)[i];
  }
  if (tokens < 2) return;
  const double mean = sum / tokens;
  for (size_t i = 0; i < responses.size(); ++i) {
    squares += static_cast<double>(responses[i].tokens) * ((*values)[i] - mean) * ((*values)[i] - mean);
  }
  const double scale = 1 / std::sqrt(squares / (tokens - 1) + kVarianceFloor);
  for (double& value : *values) value = (value - mean) * scale;
}

}  // namespace

std::vector<double> ComputeAdvantages(AdvantageKind kind, std::span<const ScoredResponse> responses) {
  const std::map<int64_t, Group> groups = Groups(responses);
  std::vector<double> advantages;
  advantages.reserve(responses.size());
  for (const ScoredResponse& r : responses)
    advantages.push_back(FromGroup(kind, groups.at(r.group), r.reward));
  if (kind == AdvantageKind::kReinforcePp) WhitenOverTokens(responses, &advantages);
  return advantages;
}

std::vector<bool> InEqualGroup(std::span<const ScoredResponse> responses) {
  const std::map<int64_t, Group> groups = Groups(responses);
  std::vector<bool> equal;
  equal.reserve(responses.size());
  for (const ScoredResponse& r : responses) {
    const Group& group = groups.at(r.group);
    equal.push_back(group.equal && group.count > 1);
  }
  return equal;
}

double OverlongPenalty(int64_t tokens, int64_t longest, int64_t buffer, double penalty) {
  if (buffer <= 0) return 0;
  const int64_t over = std::clamp<int64_t>(tokens - (longest - buffer), 0, buffer);
  return -penalty * static_cast<double>(over) / static_cast<double>(buffer);
}

}  // namespace augur
