// What a run directory's checkpoints mean for a run that begins.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "train/checkpoint/checkpoint.h"

namespace augur {

inline constexpr const char* kOtherCheckpoint = "resume from another checkpoint (run.resume=PATH)";

// The checkpoint that run.resume asks for, if any: the newest whole one (auto), none, with all removed
// (never), or the one named, which must be whole. What a killed process left unfinished is removed.
std::optional<std::filesystem::path> FindCheckpoint(const RunSection& run, const CheckpointStore& store);

// Throws Error naming `changed`, the keys in which the checkpoint's configuration computes something else,
// unless there are none or run.resume_changed allows it.
void RefuseChanges(const RunSection& run, const std::filesystem::path& checkpoint,
                   const std::vector<std::string>& changed);

}  // namespace augur
