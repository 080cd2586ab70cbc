#include "metrics/step_metrics.h"

#include <algorithm>

namespace augur {

void StepMetrics::AddMean(std::string_view name, double numerator, double denominator) {
  Fraction& fraction = means_[std::string(name)];
  fraction.numerator += numerator;
  fraction.denominator += denominator;
}

void StepMetrics::AddSum(std::string_view name, double value) { values_[std::string(name)] += value; }

void StepMetrics::AddMin(std::string_view name, double value) {
  const auto [entry, added] = values_.emplace(name, value);
  if (!added) entry->second = std::min(entry->second, value);
}

void StepMetrics::AddMax(std::string_view name, double value) {
  const auto [entry, added] = values_.emplace(name, value);
  if (!added) entry->second = std::max(entry->second, value);
}

void StepMetrics::Set(std::string_view name, double value) { values_[std::string(name)] = value; }

void StepMetrics::AddSpread(std::string_view name, double value) {
  const std::string prefix(name);
  AddMean(prefix + "/mean", value, 1);
  AddMax(prefix + "/max", value);
  AddMin(prefix + "/min", value);
}

Metrics StepMetrics::Values() const {
  Metrics all(values_.begin(), values_.end());
  for (const auto& [name, fraction] : means_) {
    if (fraction.denominator != 0) all[name] = fraction.numerator / fraction.denominator;
  }
  return all;
}

}  // namespace augur
