#include "train/parallel/shard_groups.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"

namespace augur {
namespace {

std::optional<ShardGroups> divided;

}  // namespace

const ShardGroups& CurrentShardGroups() {
  static ShardGroups all;
  all = ShardGroups{};
  return divided ? *divided : all;
}

bool DividesState(Shard shard) { return shard != Shard::kNone && !CurrentShardGroups().within.alone(); }

void DivideRanks(int64_t replicas) {
  const Ranks world = Ranks::World();
  divided.reset();
  if (world.alone() || replicas == 1) return;
  world.Together([&] {
    if (world.size() % replicas == 0) return;
    throw Error("parallel.replicas",
                fmt::format("is {}, which does not divide the {} ranks", replicas, world.size()),
                "choose a divisor, e.g. the number of nodes");
  });
  const DividedGroup made = DivideProcessGroup(static_cast<int>(replicas));
  divided = ShardGroups{Ranks(made.within), Ranks(made.across)};
}

}  // namespace augur
