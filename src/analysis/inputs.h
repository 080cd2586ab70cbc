// What the runs of a study read, so that a study does not go on with other files than it began with.
#pragma once

#include <vector>

#include "config/config.h"
#include "data/fingerprint.h"

namespace augur {

// Of data, of reward.python and of models, as `augur train` compares them. Each is read once a process: the
// runs of a study share them.
std::vector<FileFingerprint> InputFiles(const RlConfig& config);

}  // namespace augur
