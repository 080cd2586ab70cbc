// The trust region as a budget: how large it must be for a given share of a batch to lie outside.
#pragma once

#include <vector>

namespace augur {

// The threshold above which floor(budget * n) of the n divergences lie; fewer where several are equal at it,
// or where they are so small that rounding makes them. NaNs count as inside.
double DeltaForBudget(std::vector<double> divergences, double budget);

}  // namespace augur
