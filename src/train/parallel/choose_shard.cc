#include "train/parallel/choose_shard.h"

#include <fmt/format.h>

#include "base/memory.h"
#include "model/model.h"
#include "ops/device.h"
#include "ops/ranks.h"
#include "train/parallel/shard_groups.h"

namespace augur {
namespace {

constexpr double kLargestShare = 0.6;

double RankMemory(at::Device device) {
  const ProcessGroup& group = ThisProcessGroup();
  if (!device.is_cuda()) return static_cast<double>(MostMemory()) / group.local_size;
  // Gloo is what ranks that share a GPU talk over.
  return static_cast<double>(GpuMemory(device)) / (group.gpu ? 1 : group.local_size);
}

double CountParameters(const ModelConfig& config) {
  double count = 0;
  for (const at::Tensor& tensor : Parameters(AllocateModel(config, at::kBFloat16, at::Device(at::kMeta)))) {
    count += static_cast<double>(tensor.numel());
  }
  return count;
}

}  // namespace

double StateBytes(Shard shard, Precision precision, StateDtype states, int ranks) {
  const double weights = precision == Precision::kFp32 ? 4 : 2;
  const double master = precision == Precision::kFp32 ? 0 : 4;
  const double kept = master + (states == StateDtype::kBf16 ? 4 : 8);
  const double gradients = 4;  // float32 where ranks add theirs
  if (shard == Shard::kFull) return weights + (weights + gradients + kept) / ranks;  // and the rollout's copy
  if (shard == Shard::kStates) return weights + (gradients + kept) / ranks;
  return weights + gradients + kept;
}

Shard ChooseShard(const ParallelSection& parallel, const ModelSection& model,
                  const OptimizerFields& optimizer, at::Device device) {
  const Ranks ranks = Ranks::World();
  if (ranks.alone()) return Shard::kNone;
  DivideRanks(parallel.replicas);
  if (parallel.shard != Shard::kAuto) return parallel.shard;
  auto chosen = Shard::kNone;
  double parameters = 0, memory = 0;
  const auto bytes = [&] {
    return parameters *
           StateBytes(chosen, model.precision, optimizer.optimizer_dtype, CurrentShardGroups().within.size());
  };
  ranks.Together([&] {
    parameters = CountParameters(ReadModelConfig(model.path));
    memory = RankMemory(device);
    while (chosen != Shard::kFull && bytes() > kLargestShare * memory) {
      chosen = chosen == Shard::kNone ? Shard::kStates : Shard::kFull;
    }
  });
  chosen = static_cast<Shard>(ranks.Max(static_cast<double>(chosen)));
  constexpr double kGib = 1 << 30;
  fmt::print(stderr,
             "parallel.shard: {}, with which {:.2f} billion parameters take {:.2f} of {:.1f} GiB on each of "
             "{} ranks\n",
             kNamesOf<Shard>[static_cast<size_t>(chosen)], parameters / 1e9, bytes() / kGib, memory / kGib,
             ranks.size());
  return chosen;
}

}  // namespace augur
