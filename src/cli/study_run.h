// The training runs of a comparison or a frontier, one after the other or dealt out among processes.
#pragma once

#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "analysis/comparison.h"
#include "base/claim.h"
#include "cli/processes.h"
#include "config/config.h"

namespace augur {

// More is a slip of the pen.
inline constexpr int64_t kMostSeeds = 1 << 16, kMostWorkers = 1 << 10;
inline constexpr int64_t kLastFirstSeed = std::numeric_limits<int64_t>::max() - kMostSeeds;

struct StudyRun {
  std::string name;  // its directory within the study's
  RlConfig config;
};

// A finished run, or one that broke down, is not trained again. Whatever the directory holds must be the run
// that is asked for: throws Error where it is of another configuration or of other files. One that ended at
// fewer steps goes on.
bool IsDone(const RlConfig& config);

// Trains it. False where a signal asked to stop. A run that breaks down is a result, too.
bool TrainStudyRun(const RlConfig& config);

// What has come of the run so far.
RunOutcome ReadStudyRun(const RlConfig& config);

// How many processes share the runs that are left: `wanted`, or by default as many as there are cores for
// their run.threads, or one on a GPU.
int64_t StudyWorkers(int64_t wanted, std::span<const StudyRun> runs);

// The right to train it, or null where it is done or another process is at it. `dir` is the study's.
std::unique_ptr<Claim> ClaimRun(const std::filesystem::path& dir, const StudyRun& run);

struct WorkOptions {
  std::filesystem::path dir;  // of the study; claims on its runs lie there
  bool keep_weights = true;   // models and checkpoints of finished runs
};

// For a copy that DealOut has started: trains one run after the other that nobody else does, until none is
// left or a signal asks to stop.
void WorkThrough(std::span<const StudyRun> runs, const WorkOptions& options);

// Starts `workers` copies of this command with --worker and waits for them, showing how far they are.
CopiesEnd DealOut(const std::string& study, int64_t workers, std::span<const StudyRun> runs);

}  // namespace augur
