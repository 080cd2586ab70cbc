// Supports of the whole vocabulary, cut to what a rollout records.
#pragma once

#include <cstdint>

#include "rollout/rollout.h"

namespace augur {

// The support that recording with K = `k` would have given: the sampled token and the others among the k most
// likely. `whole` must hold at least that.
RecordedSupport KeepTopK(const RecordedSupport& whole, int64_t k);

}  // namespace augur
