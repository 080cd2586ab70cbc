#include "train/run/memory_check.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/hub.h"
#include "base/memory.h"
#include "base/process_group.h"
#include "base/tell.h"
#include "model/adapter_files.h"
#include "model/model.h"
#include "model/save.h"
#include "ops/parallel/ranks.h"
#include "train/parallel/shard_groups.h"
#include "train/run/lora.h"

namespace augur {
namespace {

constexpr double kGiB = 1 << 30;
constexpr double kWorkerBytes = 0.25 * kGiB;  // a Python process that has imported a verifier's libraries
constexpr double kLeastShown = 0.1 * kGiB;    // a table of zeros helps nobody

double CountParameters(const ModelConfig& config) {
  double count = 0;
  for (const at::Tensor& tensor : Parameters(AllocateModel(config, at::kBFloat16, at::Device(at::kMeta)))) {
    count += static_cast<double>(tensor.numel());
  }
  return count;
}

// Elements of the largest layer.
double LargestLayer(const ModelConfig& config) {
  double largest = 0;
  for (const LayerWeights& layer : AllocateModel(config, at::kBFloat16, at::Device(at::kMeta)).layers) {
    double count = 0;
    for (const at::Tensor& tensor : LayerParameters(layer)) count += static_cast<double>(tensor.numel());
    largest = std::max(largest, count);
  }
  return largest;
}

AdapterSize SizeOfAdapters(const LoraSection& lora, const ModelConfig& model) {
  if (!lora.adapter.empty()) return SizeOfAdapter(ModelDirectory(lora.adapter), model);
  return SizeOfAdapters({lora.rank, lora.alpha, lora.targets, lora.modules_to_save}, model, "lora.targets");
}

// What a layer keeps of a token for the backward, in elements: inputs of norms and products.
double LayerElements(const ModelConfig& c, bool sparse, bool recompute_cheap) {
  const auto hidden = static_cast<double>(c.hidden_size);
  const auto attention = static_cast<double>(2 * c.q_width() + 2 * c.kv_width());
  const double norms = recompute_cheap ? 0 : 2 * hidden;
  if (!sparse) {
    const auto inner = static_cast<double>(c.intermediate_size);
    return 2 * hidden + norms + attention + (recompute_cheap ? 2 : 3) * inner;
  }
  const auto inner = static_cast<double>(c.moe.intermediate_size);
  return 3 * hidden + norms + attention +
         static_cast<double>(c.moe.experts_per_token) * (2 * hidden + 3 * inner);
}

double ActivationBytes(const MemoryUse& use, double element) {
  const ModelConfig& c = use.model;
  const bool full = use.optimizer.checkpoint_activations == ActivationCheckpoint::kFull;
  const bool cheap = use.optimizer.checkpoint_activations == ActivationCheckpoint::kSelective;
  double kept = 0, largest = 0;
  for (int64_t i = 0; i < c.layers; ++i) {
    const double layer = LayerElements(c, c.sparse[i], cheap);
    largest = std::max(largest, layer);
    kept += full ? static_cast<double>(c.hidden_size) : layer;
  }
  return static_cast<double>(use.tokens) * element * (kept + 2 * largest);
}

// 0 where the device does not say.
double DeviceBytes(at::Device device) {
  const ProcessGroup& group = ThisProcessGroup();
  if (device.is_cpu()) return static_cast<double>(MostMemory()) / group.local_size;
  const int sharing = group.gpu ? 1 : group.local_size;  // Gloo is what ranks on one GPU talk over
  try {
    at::globalContext().lazyInitDevice(device.type());
    const auto index = std::max<c10::DeviceIndex>(device.index(), 0);
    return static_cast<double>(c10::getDeviceAllocator(device.type())->getMemoryInfo(index).second) / sharing;
  } catch (const c10::Error&) {
    return 0;
  }
}

double SizeOf(StateDtype type) { return type == StateDtype::kBf16 ? 2 : 4; }
double SizeOf(GradientDtype type) {
  constexpr double kSizes[] = {4, 2, 8};
  return kSizes[static_cast<size_t>(type)];
}

}  // namespace

double MemoryPlan::SumIn(MemoryPhase phase, bool certain_only) const {
  double sum = 0;
  for (const MemoryPart& part : parts) {
    const bool there = part.phase == MemoryPhase::kAlways || part.phase == phase;
    if (there && !part.host && (part.certain || !certain_only)) sum += part.bytes;
  }
  return sum;
}

double MemoryPlan::Sum(bool certain_only) const {
  double most = 0;
  for (size_t phase = 0; phase < kMemoryPhases; ++phase) {
    most = std::max(most, SumIn(static_cast<MemoryPhase>(phase), certain_only));
  }
  return most;
}

double MemoryPlan::HostSum(bool certain_only) const {
  double sum = 0;
  for (const MemoryPart& part : parts) {
    if (part.host && (part.certain || !certain_only)) sum += part.bytes;
  }
  return sum;
}

MemoryPlan PlanMemory(const MemoryUse& use, at::Device device) {
  const bool fp32 = use.section.precision == Precision::kFp32;
  const double element = fp32 ? 4 : 2, all = CountParameters(use.model);
  const bool adapters = UsesLora(use.lora);
  const AdapterSize size_of = adapters ? SizeOfAdapters(use.lora, use.model) : AdapterSize{};
  const double trained = adapters ? static_cast<double>(size_of.trained) : all;
  const char* type = fp32 ? "fp32" : "bf16";
  const OptimizerFields& o = use.optimizer;
  MemoryPlan plan;
  plan.total = DeviceBytes(device);
  if (!device.is_cpu()) plan.host_total = static_cast<double>(MostMemory()) / ThisProcessGroup().local_size;
  const auto add = [&](std::string name, double bytes, MemoryPhase phase = MemoryPhase::kAlways,
                       bool certain = true, bool host = false) {
    if (bytes > 0) plan.parts.push_back({std::move(name), bytes, phase, host, certain});
  };
  const bool sharded = use.shard == Shard::kStates || use.shard == Shard::kFull;
  const double ranks = sharded ? CurrentShardGroups().within.size() : 1;
  const bool shards_weights = use.shard == Shard::kFull && !adapters && ranks > 1;
  const double kept = shards_weights ? all / ranks : all;
  add(fmt::format("weights ({})", type), kept * element);
  if (adapters) {
    const bool host = device.is_cuda() && BaseStaysOnHost(static_cast<int64_t>(all * element));
    const bool rounded = use.section.precision == Precision::kFp8;
    add(fmt::format("their base ({}{})", rounded ? "fp8" : type, host ? ", in host memory" : ""),
        static_cast<double>(host ? size_of.pinned_base : size_of.base) * (rounded ? 1 : element),
        MemoryPhase::kAlways, true, host);
    add("adapters (fp32)", trained * 4);
  } else if (!fp32) {
    add("master weights (fp32)", trained * 4 / ranks);
  }
  add(fmt::format("optimizer states ({})", NameOf(o.optimizer_dtype)),
      trained * 2 * SizeOf(o.optimizer_dtype) / ranks);
  if (!device.is_cpu()) {
    // Taken in a step with several updates; a line says where it does not fit.
    add("copy of the training state, so that a step can be given up",
        trained * (4 + 2 * SizeOf(o.optimizer_dtype)) / ranks, MemoryPhase::kUpdating, false, true);
    add("reward workers, about", static_cast<double>(use.reward_workers) * kWorkerBytes, MemoryPhase::kAlways,
        false, true);
    add("responses, about", use.gathered_tokens * use.bytes_of_token, MemoryPhase::kAlways, false, true);
  }
  const double least = adapters || fp32 ? std::min(4.0, SizeOf(o.gradient_dtype)) : 2;
  if (ranks > 1) {
    const bool exact = o.gradient_dtype == GradientDtype::kFp64;
    add(fmt::format("gradients ({})", exact ? "fp64" : "fp32"), trained * (exact ? 8 : 4) / ranks,
        MemoryPhase::kUpdating);
  } else {
    add("gradients", trained * least, MemoryPhase::kUpdating);
  }
  if ((use.several || !Ranks::World().alone()) && ranks == 1) {
    add(fmt::format("gradient sums in {}, beyond that", NameOf(o.gradient_dtype)),
        trained * (SizeOf(o.gradient_dtype) - least), MemoryPhase::kUpdating, false);
  }
  const double reference = use.reference ? CountParameters(*use.reference) : 0;
  const double kept_of_reference = shards_weights ? reference / ranks : reference;
  add("reference model", kept_of_reference * element);
  const bool fp8 =
      use.section.precision == Precision::kFp8 || use.section.precision == Precision::kFp8Rollout;
  const bool own_rollouts = use.own_rollouts || shards_weights;
  if (use.rollouts && (own_rollouts || fp8 || device.is_cpu())) {
    add(fmt::format("rollout's copy of the weights{}", shards_weights ? ", while generating" : ""),
        all * (fp8 && device.is_cuda() && !own_rollouts ? 1 : element),
        shards_weights ? MemoryPhase::kGenerating : MemoryPhase::kAlways, shards_weights);
  }
  if (shards_weights) {
    const double layer = LargestLayer(use.model), file = static_cast<double>(kShardBytes);
    const double head = static_cast<double>(use.model.vocab_size * use.model.hidden_size);
    const double whole = std::max(all - kept, reference - kept_of_reference);
    add("a whole model, while loading", whole * element, MemoryPhase::kLoading);
    add("a layer, the next and the head, gathered", (2 * layer + head) * element, MemoryPhase::kUpdating);
    // A layer's own gradient, and in the type that travels that of this layer and of the one before.
    add("their gradients, while they travel",
        layer * element + 2 * layer * (o.gradient_dtype == GradientDtype::kFp64 ? 8 : 4),
        MemoryPhase::kUpdating);
    add("parts of one file, while saving the model", std::min(all * element, file + 2 * layer * element),
        MemoryPhase::kSaving);
  }
  add(fmt::format("activations of {} tokens, about", use.tokens), ActivationBytes(use, element),
      MemoryPhase::kUpdating, false);
  return plan;
}

namespace {

std::string PlanLine(std::string_view name, double bytes) {
  return fmt::format("  {:<60}{:>8.2f}\n", name, bytes / kGiB);
}

}  // namespace

std::string DescribeMemory(const MemoryPlan& plan) {
  std::string text =
      plan.total > 0 ? fmt::format("memory, GiB of {:.1f}:\n", plan.total / kGiB) : "memory, GiB:\n";
  for (const MemoryPart& part : plan.parts)
    if (!part.host) text += PlanLine(part.name, part.bytes);
  constexpr std::pair<MemoryPhase, std::string_view> kPhases[] = {
      {MemoryPhase::kLoading, "together while loading"},
      {MemoryPhase::kUpdating, "together while updating"},
      {MemoryPhase::kGenerating, "together while generating and evaluating"},
      {MemoryPhase::kSaving, "together while saving the model"}};
  for (const auto& [phase, name] : kPhases) {
    const bool own = std::ranges::any_of(plan.parts, [&](const MemoryPart& p) { return p.phase == phase; });
    if (own) text += PlanLine(name, plan.SumIn(phase, false));
  }
  text += PlanLine("together, keys and values of rollouts apart", plan.Sum(false));
  if (plan.HostSum(false) == 0) return text;
  text += fmt::format("host memory, GiB of {:.1f} for each of {} processes of a machine:\n",
                      plan.host_total / kGiB, ThisProcessGroup().local_size);
  for (const MemoryPart& part : plan.parts) {
    if (part.host) text += PlanLine(part.name, part.bytes);
  }
  return text + PlanLine("together", plan.HostSum(false));
}

void TellMemory(const MemoryPlan& plan, const MemoryUse& use, const std::string& section) {
  if (plan.Sum(false) >= kLeastShown) Tell("{}", DescribeMemory(plan));
  if (plan.host_total > 0 && plan.HostSum(false) > plan.host_total) {
    Tell(
        "augur: warning: each of the {} processes of a machine may take {:.1f} GiB of host memory, and there "
        "are "
        "{:.1f} for it; where it runs out, start fewer processes on a machine\n",
        ThisProcessGroup().local_size, plan.HostSum(false) / kGiB, plan.host_total / kGiB);
  }
  if (plan.total == 0 || plan.Sum(false) <= plan.total) return;
  Tell("augur: warning: training may take {:.1f} GiB, and there are {:.1f}; where it runs out, {}\n",
       plan.Sum(false) / kGiB, plan.total / kGiB,
       UpdateMemoryRemedy(section, use.optimizer, use.lora, use.shard));
}

void RequireMemory(const MemoryPlan& plan, const MemoryUse& use, const std::string& section, bool show) {
  if (plan.host_total > 0 && plan.HostSum(true) > plan.host_total) {
    throw Error(
        use.section.path,
        fmt::format("the adapters' base takes {:.1f} GiB of host memory for each of {} processes of a "
                    "machine, and there are {:.1f}",
                    plan.HostSum(true) / kGiB, ThisProcessGroup().local_size, plan.host_total / kGiB),
        "start fewer processes on a machine, or take model.precision=fp8 or a smaller model");
  }
  const double least = plan.Sum(true);
  if (plan.total == 0 || least <= plan.total) return;
  if (show) Tell("{}", DescribeMemory(plan));
  std::vector<std::string> ways;
  if (!Ranks::World().alone() && use.shard != Shard::kFull) ways.emplace_back("parallel.shard=full");
  if (use.optimizer.optimizer_dtype == StateDtype::kFp32) ways.push_back(section + ".optimizer_dtype=bf16");
  if (use.optimizer.gradient_dtype == GradientDtype::kFp64) ways.push_back(section + ".gradient_dtype=fp32");
  if (use.section.precision == Precision::kFp32) ways.emplace_back("model.precision=bf16");
  if (!UsesLora(use.lora)) ways.emplace_back("lora.rank=32");
  ways.emplace_back("a smaller model");
  throw Error(
      use.section.path,
      fmt::format(
          "training its {:.2f} billion parameters in {} takes at least {:.1f} GiB, and there are {:.1f}",
          CountParameters(use.model) / 1e9, kNamesOf<Precision>[static_cast<size_t>(use.section.precision)],
          least / kGiB, plan.total / kGiB),
      fmt::format("take {}, or a device with more memory", fmt::join(ways, ", ")));
}

std::string UpdateMemoryRemedy(const std::string& section, const OptimizerFields& optimizer,
                               const LoraSection& lora, Shard shard) {
  std::vector<std::string> ways;
  if (optimizer.micro_tokens > 1) {
    ways.push_back(fmt::format("{}.micro_tokens={}", section, optimizer.micro_tokens / 2));
  }
  if (optimizer.checkpoint_activations != ActivationCheckpoint::kFull) {
    ways.push_back(fmt::format("{}.checkpoint_activations=full", section));
  }
  if (optimizer.optimizer_dtype == StateDtype::kFp32) {
    ways.push_back(fmt::format("{}.optimizer_dtype=bf16", section));
  }
  if (optimizer.gradient_dtype == GradientDtype::kFp64) {
    ways.push_back(fmt::format("{}.gradient_dtype=fp32", section));
  } else if (optimizer.gradient_dtype == GradientDtype::kFp32 && !DividesState(shard)) {
    ways.push_back(fmt::format("{}.gradient_dtype=bf16", section));
  }
  if (!UsesLora(lora)) ways.emplace_back("lora.rank=32");
  ways.emplace_back("a smaller model");
  return fmt::format("try {}", fmt::join(ways, ", "));
}

}  // namespace augur
