#include "mask/outside_budget.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace augur {
namespace {

// Policies that differ by rounding alone lie closer than this; no token is outside for that.
constexpr double kLeastDelta = 1e-6;

}  // namespace

double DeltaForBudget(std::vector<double> divergences, double budget) {
  if (divergences.empty()) return kLeastDelta;
  for (double& d : divergences) d = std::isnan(d) ? 0 : d;
  const auto count = static_cast<double>(divergences.size());
  const auto outside = static_cast<size_t>(budget * count + 1e-9);  // 0.29 * 100 is a little less than 29
  const size_t inside = std::min(outside, divergences.size() - 1);
  const auto largest_inside = divergences.begin() + static_cast<std::ptrdiff_t>(inside);
  std::nth_element(divergences.begin(), largest_inside, divergences.end(), std::greater());
  if (inside == 0) return std::max(divergences[0], kLeastDelta);
  // Between the two: where rounding differs from one computation to the next, neither changes sides.
  const double smallest_outside = *std::min_element(divergences.begin(), largest_inside);
  return std::max(*largest_inside + (smallest_outside - *largest_inside) / 2, kLeastDelta);
}

}  // namespace augur
