// Checkpoints that are either whole or not there.
//
// RUN/checkpoints/global_step_N/ holds the files of one, and manifest.json with the size and checksum of
// each. It is written under another name, synced and renamed; then latest_checkpointed_iteration.txt points
// to it, and only then do older ones go.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace augur {

class CheckpointStore {
 public:
  explicit CheckpointStore(const std::filesystem::path& run);

  // Calls `fill` with an empty directory, to which it writes its files (without subdirectories), and makes a
  // checkpoint of them. `keep` newest remain; 0 keeps all. Throws Error (disk full, ...) after removing what
  // was begun, and says which checkpoint is then the newest.
  void Write(int64_t step, int64_t keep, const std::function<void(const std::filesystem::path&)>& fill) const;

  // The newest checkpoint that is whole. `warn` gets a line for every damaged one passed over.
  std::optional<std::filesystem::path> FindNewest(const std::function<void(const std::string&)>& warn) const;

  // Removes what a killed process left unfinished.
  void RemoveUnfinished() const;
  // Removes every checkpoint.
  void RemoveAll() const;

  // Complete ones by name, rising; whether they are damaged has not been looked at.
  std::vector<int64_t> Steps() const;
  std::filesystem::path PathOf(int64_t step) const;

 private:
  std::filesystem::path directory_;
};

// Why the checkpoint cannot be used, or nothing: each file of the manifest is there with its size and
// checksum.
std::optional<std::string> WhyDamaged(const std::filesystem::path& checkpoint);

}  // namespace augur
