// What a run directory's contents mean for a run that begins: from which checkpoint it goes on, and what that
// leaves behind.
//
// The steps from a beginning on are a line. run.resume=auto goes on with the line the directory holds; a
// checkpoint or `never` begins another, once: RUN/line.json remembers which it was, and the same command
// afterwards goes on with it. What the old line had behind the new one's beginning is moved to
// RUN/checkpoints/abandoned-N.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/config.h"
#include "train/checkpoint/checkpoint.h"

namespace augur {

// How a run's line began, where it did not at step 0 by itself.
struct Line {
  std::string
      resume;  // "never", the checkpoint's absolute path, or "auto" where there was nothing to go on from
  std::string moving;  // the folder to which the old line is being moved; empty once that is done
};

struct ResumePlan {
  std::optional<std::filesystem::path> checkpoint;  // to go on from; none: from the beginning
  std::optional<Line> begins;                       // the line that begins, where one does
  bool leaves_all = false;                          // nothing in the directory is part of the line
  std::vector<std::string> changed;  // since the checkpoint, "key: before -> now"; the caller's to say
  bool other_rollouts = false;       // responses that wait in the checkpoint would be made otherwise now
  bool same_line = false;  // run.resume acted before: what lies behind the checkpoint is of this line
  std::optional<std::filesystem::path> history;  // whose logs go before the line's own; none: this run's
};

// Throws Error where the directory holds, under names that a run writes, what no run made.
void RefuseFilesOfOthers(const std::filesystem::path& run);

class Resume {
 public:
  // Finishes a move that was interrupted, and tidies unfinished checkpoints. Both must outlive this object.
  Resume(const RunSection& run, const CheckpointStore& store);

  // Decides, and changes nothing. `config_changes` names what differs between a configuration file of this
  // kind of run and the present one, `data_changes` what differs in the data of a checkpoint. Throws Error
  // for a checkpoint that is missing or damaged, and where the run's checkpoints are gone.
  using Changes = std::function<std::vector<std::string>(const std::filesystem::path&)>;
  ResumePlan Plan(const Changes& config_changes, const Changes& data_changes) const;

  // Whether steps of this directory lie behind `step` and are not part of the plan's line.
  bool LeavesSteps(const ResumePlan& plan, int64_t step) const;

  // Throws Error where one of the files and directories that the run reads lies in what CarryOut would move.
  void RefuseToMove(const ResumePlan& plan, int64_t step, const std::vector<std::string>& inputs) const;

  // Moves aside what the plan leaves behind `step` (-1: everything), and cuts the logs to it. `figures_step`
  // is the last step whose figures stay.
  void CarryOut(const ResumePlan& plan, int64_t step, int64_t figures_step) const;

 private:
  std::optional<std::filesystem::path> Requested() const;
  ResumePlan GoOn(const Changes& config_changes) const;
  bool LostCheckpoints() const;
  std::string CheckpointsHere() const;
  void LeaveAll(const Line& line) const;
  void LeaveAfter(int64_t step) const;

  const RunSection& run_;
  const CheckpointStore& store_;
  const std::filesystem::path directory_;
  std::optional<Line> line_;  // the directory's
};

// Throws Error naming what changed since the checkpoint, unless nothing did or run.resume_changed allows it.
void RefuseChanges(const RunSection& run, const LoraSection& lora, const std::filesystem::path& checkpoint,
                   const std::vector<std::string>& changed);

}  // namespace augur
