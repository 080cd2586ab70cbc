#include "train/run/choose_shard.h"

#include "base/tell.h"
#include "ops/parallel/ranks.h"
#include "train/parallel/shard_groups.h"

namespace augur {
namespace {

constexpr double kLargestShare = 0.6;

}  // namespace

Shard ChooseShard(const ParallelSection& parallel, const std::function<MemoryPlan(Shard)>& plan) {
  const Ranks ranks = Ranks::World();
  if (ranks.alone()) return Shard::kNone;
  DivideRanks(parallel.replicas);
  if (parallel.shard != Shard::kAuto) return parallel.shard;
  auto chosen = Shard::kNone;
  const auto fits = [&] {
    const MemoryPlan here = plan(chosen);
    return here.total == 0 || here.Sum(false) <= kLargestShare * here.total;
  };
  ranks.Together([&] {
    while (chosen != Shard::kFull && !fits()) {
      chosen = chosen == Shard::kNone ? Shard::kStates : Shard::kFull;
    }
  });
  chosen = static_cast<Shard>(ranks.Max(static_cast<double>(chosen)));
  constexpr double kGib = 1 << 30;
  const MemoryPlan found = plan(chosen);
  Tell(
      "parallel.shard: {}, with which weights and training state take {:.2f} of {:.1f} GiB on each of "
      "{} ranks\n",
      kNamesOf<Shard>[static_cast<size_t>(chosen)], found.Sum(false) / kGib, found.total / kGib,
      ranks.size());
  return chosen;
}

}  // namespace augur
