// Which rank ended: each counts up in the group's store once a second, and one whose count stands still is
// gone or stuck.
#pragma once

#include <string>

#include "base/process_group.h"

namespace augur {

// From now on, on a thread of its own, until the process ends.
void StartHeartbeat(const ProcessGroup& group);

// "rank 2", "ranks 2, 3", or "another rank" where nobody knows. Takes a few seconds; all ranks that ask are
// told the same.
std::string SilentRanks(const ProcessGroup& group);

}  // namespace augur
