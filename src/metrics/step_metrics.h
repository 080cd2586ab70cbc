// The figures of one step, gathered from its micro-batches so that the split into them changes nothing.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace augur {

using Metrics = std::map<std::string, double>;

class StepMetrics {
 public:
  // A mean: the sum of numerators over the sum of denominators. One with a denominator of 0 is left out.
  void AddMean(std::string_view name, double numerator, double denominator);
  void AddSum(std::string_view name, double value);
  void AddMin(std::string_view name, double value);
  void AddMax(std::string_view name, double value);
  // A figure that is known as it stands (a learning rate, a time); the last one counts.
  void Set(std::string_view name, double value);

  // name/mean, name/max and name/min of values that come one by one (verl's critic/score/mean, ...).
  void AddSpread(std::string_view name, double value);

  // What has been gathered; names are unique across the kinds.
  Metrics Values() const;

 private:
  struct Fraction {
    double numerator = 0, denominator = 0;
  };
  std::map<std::string, Fraction, std::less<>> means_;
  std::map<std::string, double, std::less<>> values_;
};

}  // namespace augur
