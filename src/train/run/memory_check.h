// What training will hold in memory, before anything is loaded; and what to do when it does not fit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "family/config.h"

namespace augur {

enum class MemoryPhase {
  kAlways,
  kLoading,
  kUpdating,
  kGenerating,  // and evaluating
  kSaving,      // the model, at the end
};
inline constexpr size_t kMemoryPhases = 5;

struct MemoryPart {
  std::string name;
  double bytes = 0;
  MemoryPhase phase = MemoryPhase::kAlways;
  bool host = false;    // in host memory while the rest is on a GPU
  bool certain = true;  // needed whatever the data; activations are an estimate
};

struct MemoryPlan {
  std::vector<MemoryPart> parts;  // of one rank
  double total = 0;               // bytes of the device for this rank, 0 where it does not say
  double host_total = 0;  // of host memory, where the device is a GPU: this rank's share of the machine's

  double Sum(bool certain_only) const;  // on the device, in the phase that takes most
  double SumIn(MemoryPhase phase, bool certain_only) const;
  double HostSum(bool certain_only) const;
};

// A training run in memory terms.
struct MemoryUse {
  const ModelConfig& model;
  const ModelSection& section;
  const LoraSection& lora;
  const OptimizerFields& optimizer;
  int64_t tokens = 0;                         // of the largest micro-batch
  bool several = true;                        // micro-batches in an update, whose gradients are added up
  bool rollouts = false;                      // a copy of the weights generates
  bool own_rollouts = false;                  // which may not be the trainer's own
  std::optional<ModelConfig> reference = {};  // of a KL penalty, unless it is the base of adapters
  int64_t reward_workers = 0;                 // processes on the host
  double gathered_tokens = 0;                 // of all responses that are kept at once, with prompts
  double bytes_of_token = 0;                  // that a rank keeps of one
  Shard shard = Shard::kNone;                 // not auto
};

MemoryPlan PlanMemory(const MemoryUse& use, at::Device device);

// "  master weights (fp32)   30.5" a line, in GiB.
std::string DescribeMemory(const MemoryPlan& plan);

// Writes it, and a warning where it may be more than the device or the host has; `section` is the
// optimizer's, "train" or "sft".
void TellMemory(const MemoryPlan& plan, const MemoryUse& use, const std::string& section);

// Throws Error where what is certain is more than the device or the host has; with `show` the plan is written
// first.
void RequireMemory(const MemoryPlan& plan, const MemoryUse& use, const std::string& section, bool show);

// For updates that ran out of memory.
std::string UpdateMemoryRemedy(const std::string& section, const OptimizerFields& optimizer,
                               const LoraSection& lora, Shard shard);

}  // namespace augur
