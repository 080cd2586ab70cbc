// Which ranks divide the training state among themselves: all of them, or with parallel.replicas those of a
// group, next to others that hold the same.
#pragma once

#include <cstdint>

#include "config/options.h"
#include "ops/parallel/ranks.h"

namespace augur {

struct ShardGroups {
  Ranks within = Ranks::World();         // those that this rank divides the state with
  Ranks across = Ranks(ProcessGroup{});  // those that have the same part as this rank
};

// As DivideRanks made them last; all ranks in one group before.
const ShardGroups& CurrentShardGroups();

// Whether gradients and training state are divided among the ranks of the current groups; `shard` is not
// auto.
bool DividesState(Shard shard);

// Makes `replicas` groups of neighbouring ranks. Every rank calls it. Throws Error where that does not divide
// the ranks.
void DivideRanks(int64_t replicas);

}  // namespace augur
