// The checkpoints of a run: RUN/checkpoints/global_step_N, each whole or absent.
//
// A checkpoint is written next to its place, synced, listed in its manifest with sizes and checksums, pointed
// to by latest_checkpointed_iteration.txt and then renamed; older ones go last. The pointer says where the
// run stands: checkpoints of later steps belong to a line that was left. Those, and whatever else a resumed
// run leaves behind, are moved to RUN/checkpoints/abandoned-N, never removed.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/parallel/ranks.h"

namespace augur {

inline constexpr const char* kOtherCheckpoint = "resume from another checkpoint (run.resume=PATH)";
inline constexpr const char* kCheckpointConfig = "config.yaml";
inline constexpr const char* kCheckpointTensors = "tensors.safetensors";

// What a manifest holds of each file, by name.
struct FileSum {
  uint64_t size = 0;
  std::string checksum;
};
using FileSums = std::map<std::string, FileSum>;

// Of a checkpoint's files, the same on every rank, which all call it: each reads those it has written.
FileSums SumFilesTogether(const Ranks& ranks, const std::filesystem::path& checkpoint);

class CheckpointStore {
 public:
  explicit CheckpointStore(const std::filesystem::path& run);

  // Why the checkpoint cannot be used, or nothing. Where there are several ranks, of large files only what
  // their sizes say, and what CheckTogether has found.
  std::optional<std::string> WhyDamaged(const std::filesystem::path& checkpoint) const;
  // Each rank reads some of the checkpoint's large files and compares their checksums. Every rank calls it.
  // Returns whether the checkpoint is whole.
  bool CheckTogether(const Ranks& ranks, const std::filesystem::path& checkpoint);

  // Makes an empty directory, Unfinished(step), for a checkpoint's files (without subdirectories), which
  // Publish makes a checkpoint of. `keep` newest remain then; 0 keeps all.
  void Begin(int64_t step) const;
  std::filesystem::path Unfinished(int64_t step) const;
  // Files whose sizes and checksums are not in `known` are read for them.
  void Publish(int64_t step, int64_t keep, const FileSums& known = {}) const;
  // Removes what was begun and could not be finished because of `fault` (disk full, ...), and says which
  // checkpoint is then the newest.
  Error GiveUp(int64_t step, const std::exception& fault) const;

  // The newest checkpoint that is whole, at or before the one pointed to. `warn` gets a line for every
  // damaged one passed over. Throws Error where all there are lie behind the pointer.
  std::optional<std::filesystem::path> FindCurrent(const std::function<void(const std::string&)>& warn) const;

  // Publishes a checkpoint that a killed process had completed and pointed to; removes what else it left
  // unfinished.
  void TidyUnfinished() const;

  // The step that is pointed to, whether or not its checkpoint is there; nothing before the first one.
  std::optional<int64_t> Pointer() const;
  // Makes `step` the one pointed to.
  void Point(int64_t step) const;
  // An empty directory abandoned-N, N one more than the last.
  std::filesystem::path MakeAbandoned() const;
  // Moves the checkpoints after `step` to `folder`; with step -1 all of them and the pointer.
  void MoveAfter(int64_t step, const std::filesystem::path& folder) const;

  // Complete ones by name, rising; whether they are damaged has not been looked at.
  std::vector<int64_t> Steps() const;
  std::filesystem::path PathOf(int64_t step) const;
  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_;
  std::map<std::filesystem::path, std::string> damaged_;  // found by CheckTogether
};

// Why the checkpoint cannot be used, or nothing: each file of the manifest is there with its size and
// checksum.
std::optional<std::string> WhyDamaged(const std::filesystem::path& checkpoint);

}  // namespace augur
