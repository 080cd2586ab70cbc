// Settings that do nothing without another one.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace augur {

// "mask.delta does nothing where mask.proximity is ratio", for each setting that has another value than its
// default and no effect. `ranks`: how many processes the run has.
std::vector<std::string> IdleSettings(const RlConfig& config, int ranks);

}  // namespace augur
