// One training run of a comparison or a frontier.
#pragma once

#include <string>

#include "config/config.h"

namespace augur {

// Throws Error where the run's directory holds one of another configuration.
void ExpectSameConfig(const RlConfig& config);
// A finished run is not trained again, but must be the one that is asked for.
bool IsFinished(const RlConfig& config);

// Trains it. False where a signal asked to stop. A run that breaks down is a result, too: `failure` then says
// how; any other error is thrown on.
bool TrainOne(const RlConfig& config, std::string* failure);

}  // namespace augur
