// Experience waiting to be learned from, as part of a checkpoint.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "base/json.h"
#include "train/step/experience.h"

namespace augur {

// Writes everything but times: arrays to `path` (safetensors), counters into the returned object.
Json SaveExperiences(std::span<const Experience* const> experiences, const std::filesystem::path& path);

// What SaveExperiences wrote. `tokens` are those of the prompts, by place. Throws Error naming the file where
// it does not fit together.
std::vector<Experience> LoadExperiences(const Json& counters, const std::filesystem::path& path,
                                        const std::vector<std::vector<int32_t>>& tokens);

}  // namespace augur
