// The state of a reinforcement learning run between two steps, and how it is kept in a checkpoint's
// directory.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>

#include "base/json.h"
#include "data/prompt_length.h"
#include "train/step/experience.h"
#include "train/step/learner.h"

namespace augur {

struct RunState {
  uint64_t position = 0;           // in the order of prompts
  std::deque<Experience> waiting;  // generated, not yet learned from
  std::optional<double> before;    // accuracy of the evaluation before the first step
  std::optional<double> after;     // of the latest one
  // Latest steps in a row whose every response scored 0, and those in which no group had two scores.
  int64_t zero_steps = 0, equal_steps = 0;
};

// Writes tensors.safetensors and queue.safetensors; returns the rest.
Json SaveState(const RunState& state, Learner& learner, const std::filesystem::path& directory);

// The reverse; `learner` was made for the same model. Without `keep_waiting`, what waits is left out, and the
// position is the one it was generated from. Throws Error where the files do not fit.
RunState LoadState(const Json& json, const std::filesystem::path& directory, const TokenizedPrompts& prompts,
                   bool keep_waiting, Learner* learner);

}  // namespace augur
