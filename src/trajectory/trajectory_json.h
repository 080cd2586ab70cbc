// Trajectories as JSON lines.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trajectory/trajectory.h"

namespace augur {

// Keys in the order they were added; numbers with the digits a float needs and no more.
using TrajectoryJson =
    nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool, int64_t, uint64_t, float>;

// {"prompt", "sample", "prompt_tokens", "tokens", "spans", "logprobs", "support_ids" [T][K+1],
// "support_logprobs" [T][K+1], "temperature", "weight_version", "finish_reason"}, and "error" where it
// failed. The supports are left out where none was recorded; unused columns hold id -1 and null. A span is
// [begin, end, "sampled" or "observed", weight version], of places in "tokens"; log-probs and supports are of
// the sampled tokens.
TrajectoryJson ToJson(const Trajectory& trajectory);

}  // namespace augur
