// The state of a run between two steps, and how it is kept in a checkpoint's directory.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>

#include "config/config.h"
#include "train/step/experience.h"
#include "train/step/learner.h"

namespace augur {

struct RunState {
  int64_t step = 0;                // finished steps; the weights' version
  uint64_t position = 0;           // in the order of prompts
  std::deque<Experience> waiting;  // generated, not yet learned from
  std::optional<double> before;    // accuracy of the evaluation before the first step
  std::optional<double> after;     // of the latest one
  double train_seconds = 0;
};

// Writes state.json, tensors.safetensors, queue.safetensors and config.yaml.
void SaveState(const RunState& state, Learner& learner, RlConfig config,
               const std::filesystem::path& directory);

// The reverse; `learner` was made for the same model. Throws Error where the files do not fit it.
RunState LoadState(const std::filesystem::path& directory, const TokenizedPrompts& prompts, Learner* learner);

// Throws Error naming the keys where the checkpoint's configuration computes something else than `config`,
// unless run.resume_changed allows it.
void CheckSameConfig(const std::filesystem::path& checkpoint, const RlConfig& config);

}  // namespace augur
