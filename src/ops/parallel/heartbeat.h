// Which rank ended or is stuck: each counts up in the store of all ranks once a second, and says how often it
// has called the others.
#pragma once

#include <string>
#include <string_view>

#include "base/process_group.h"

namespace augur {

inline constexpr std::string_view kLostRankRemedy =
    "see what that rank said; parallel.timeout_s is how long ranks wait for each other";

// From now on, on a thread of its own, until the process ends.
void StartHeartbeat(const ProcessGroup& group);

// This rank is about to wait for others.
void CountCall();

// "rank 2", "ranks 2, 3": those whose count stands still, or else those that have called least. "another
// rank" where nobody knows. Takes a few seconds; all ranks that ask are told the same.
std::string SilentRanks();

}  // namespace augur
