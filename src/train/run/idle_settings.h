// Settings that do nothing without another one.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace augur {

// "mask.delta does nothing where mask.proximity is ratio", for settings that have another value than their
// default and that a user may think to have an effect. `ranks`: how many processes the run has.
std::vector<std::string> IdleSettings(const RlConfig& config, int ranks);
std::vector<std::string> IdleSettings(const SftConfig& config);

}  // namespace augur
