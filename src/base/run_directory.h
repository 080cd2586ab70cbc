// What a run directory holds, and how it is told from a model's.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

namespace augur {

inline constexpr const char* kRunConfig = "config.yaml";
inline constexpr const char* kRunModel = "model";
inline constexpr const char* kRunAdapter = "adapter";
inline constexpr const char* kCheckpoints = "checkpoints";
inline constexpr const char* kCheckpointManifest = "manifest.json";
inline constexpr const char* kCheckpointState = "state.json";

// A checkpoint by its files; whether it is whole has not been looked at.
bool IsCheckpoint(const std::filesystem::path& directory);
// A run of `augur train` or `augur sft`, whatever it has come to.
bool IsRun(const std::filesystem::path& directory);

// Throws Error where the directory holds some of `names`, which no command of Augur made: one leaves `mark`
// there.
void RefuseToReplace(const std::filesystem::path& directory, const char* mark,
                     std::initializer_list<const char*> names);
// The same for files that were found.
[[noreturn]] void ThrowFilesOfOthers(const std::filesystem::path& directory,
                                     const std::vector<std::string>& found);

// Throws Error where the directory is a run, its checkpoints or one of them, saying where a model is to be
// had.
void RefuseRunDirectory(const std::filesystem::path& directory);

}  // namespace augur
