// Figures of a comparison or a frontier as its table on the terminal shows them.
#pragma once

#include <string>

#include "base/json.h"

namespace augur {

// "mean [low, high]" in percent, of two seeds their values, "mean (a, b)"; "-" without a mean, and no
// interval where there is none, as of one seed.
std::string PercentAndInterval(const Json& figure);
// The p of a difference.
std::string PValue(const Json& difference);

}  // namespace augur
