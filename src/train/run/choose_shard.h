// What the ranks divide among themselves, where parallel.shard is auto.
#pragma once

#include <functional>

#include "config/config.h"
#include "train/run/memory_check.h"

namespace augur {

// parallel.shard; for auto the first of none, states and full which by `plan`, of one rank without
// activations, leaves at least two fifths of the memory to activations and generation, said on standard
// error. The same on every rank. A process that is alone divides nothing. Ranks are divided into replicas.
Shard ChooseShard(const ParallelSection& parallel, const std::function<MemoryPlan(Shard)>& plan);

}  // namespace augur
