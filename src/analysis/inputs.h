// What the runs of a study read, so that a study does not go on with other files than it began with.
#pragma once

#include <vector>

#include "config/config.h"
#include "data/fingerprint.h"

namespace augur {

// Data files and the file of reward.python in full, as `augur train` looks at them; the files of models by
// their size and their first and last MiB. Files are read once a process: the runs of a study share them.
std::vector<FileFingerprint> InputFiles(const RlConfig& config);

}  // namespace augur
