// Revisions of the hub in a run's configuration.
#pragma once

#include "config/config.h"

namespace augur {

// The configuration with a commit at every model and data set of the hub, so that the run keeps to it: the
// commit that the run directory's config.yaml has, where the run may go on from there, otherwise the one the
// name now stands for.
RlConfig PinRevisions(RlConfig config);
SftConfig PinRevisions(SftConfig config);

}  // namespace augur
