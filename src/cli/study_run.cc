#include "cli/study_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "analysis/inputs.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/run_lock.h"
#include "base/tell.h"
#include "config/read.h"
#include "config/write.h"
#include "metrics/metrics_file.h"
#include "metrics/progress.h"
#include "rollout/device.h"
#include "train/run/trainer.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

// In the directory of a run that broke down.
constexpr const char* kBreakdownFile = "breakdown.json";
// What it read, as InputFiles says it; runs of earlier versions have none.
constexpr const char* kInputsFile = "inputs.json";

constexpr const char* kOtherRun = "choose another --dir, or remove that run";

void ExpectSameInputs(const RlConfig& config) {
  const fs::path run = config.run.dir, inputs = run / kInputsFile;
  if (!fs::exists(inputs)) return;
  const std::vector<std::string> changed =
      ChangedFiles(ParseJson(ReadFile(inputs), inputs.string()), InputFiles(config));
  if (!changed.empty())
    throw Error(run.string(), fmt::format("was trained with other files: {}", changed.front()), kOtherRun);
}

void ExpectSameConfig(const RlConfig& config) {
  const fs::path run = config.run.dir;
  const RlConfig before = ReadRlConfig(run / "config.yaml");
  std::vector<std::string> changed = ChangedKeys(before, config);
  if (const std::string steps = ScheduleChange(before, config); !steps.empty()) changed.push_back(steps);
  if (!changed.empty()) {
    throw Error(run.string(), fmt::format("was trained with another configuration: {}", changed.front()),
                kOtherRun);
  }
}

// Whether no process has the run's directory.
bool IsFree(const fs::path& run) {
  try {
    const RunLock lock(run);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Training would take a run with a summary for finished, and its figures are gone.
void ExpectWholeLog(const RlConfig& config) {
  const fs::path run = config.run.dir, summary = run / "summary.json";
  if (fs::exists(run / kBreakdownFile) || !fs::exists(summary)) return;
  const Json steps = RequireKey(ParseJson(ReadFile(summary), summary.string()), "steps", summary.string());
  if (steps < config.train.steps || LastStep(run / kMetricsFile) >= config.train.steps) return;
  throw Error(run.string(), "has come to its last step, and its metrics.jsonl lacks steps",
              "put the file back, or remove the run's directory: the same command trains it again");
}

// Whether the run stands at its last step, or broke down. One that ended at fewer steps than are asked for
// now has not.
bool HasEnded(const RlConfig& config) {
  const fs::path run = config.run.dir, summary = run / "summary.json";
  if (fs::exists(run / kBreakdownFile)) return true;
  if (!fs::exists(summary)) return false;
  const Json steps = RequireKey(ParseJson(ReadFile(summary), summary.string()), "steps", summary.string());
  return steps >= config.train.steps && LastStep(run / kMetricsFile) >= config.train.steps;
}

}  // namespace

bool IsDone(const RlConfig& config) {
  const fs::path run = config.run.dir;
  if (!fs::exists(run / "config.yaml")) return false;
  ExpectSameConfig(config);
  ExpectSameInputs(config);
  ExpectWholeLog(config);
  return HasEnded(config);
}

bool TrainStudyRun(const RlConfig& config) {
  ExpectSameInputs(config);
  TrainOptions options;
  options.begins = [&](const std::string&, bool) {
    WriteFileAtomically(fs::path(config.run.dir) / kInputsFile, ToJson(InputFiles(config)).dump(2) + "\n");
  };
  try {
    return RunTraining(config, options).stopped_by.empty();
  } catch (const NotFiniteError& error) {
    Tell("augur: warning: {}: {}\n", config.run.dir, error.what());
    WriteFileAtomically(fs::path(config.run.dir) / kBreakdownFile,
                        Json({{"note", error.what()}}).dump() + "\n");
    return true;
  }
}

RunOutcome ReadStudyRun(const RlConfig& config) {
  const fs::path directory = config.run.dir;
  if (!fs::exists(directory / "config.yaml")) {
    RunOutcome absent;
    absent.seed = config.run.seed;
    absent.note = "not trained yet";
    return absent;
  }
  RunOutcome outcome = ReadRunOutcome(directory, config.run.seed, config.train.steps);
  if (!outcome.finished && fs::exists(directory / kBreakdownFile)) {
    const Json breakdown = ParseJson(ReadFile(directory / kBreakdownFile), directory.string());
    outcome.note = breakdown.value("note", "");
    outcome.broke_down = true;
  }
  return outcome;
}

int64_t StudyWorkers(int64_t wanted, std::span<const StudyRun> runs) {
  const auto left = static_cast<int64_t>(
      std::ranges::count_if(runs, [](const StudyRun& run) { return !HasEnded(run.config); }));
  if (wanted > 0) return std::min(wanted, left);
  const RunSection& run = runs.front().config.run;
  if (!RunDevice(run).is_cpu()) return std::min<int64_t>(1, left);
  const auto cores = UsableCores();
  const int64_t threads = run.threads > 0 ? run.threads : cores;
  return std::min(std::max<int64_t>(1, cores / threads), left);
}

std::unique_ptr<Claim> ClaimRun(const fs::path& dir, const StudyRun& run) {
  if (IsDone(run.config)) return nullptr;
  std::string name = run.name;
  std::ranges::replace(name, '/', '_');
  std::unique_ptr<Claim> claim = Claim::Take(dir / "claims", name);
  if (!claim || IsDone(run.config) || !IsFree(run.config.run.dir)) return nullptr;
  return claim;
}

void WorkThrough(std::span<const StudyRun> runs, const WorkOptions& options) {
  EndWithParent();
  for (bool trained = true; trained;) {
    trained = false;
    for (const StudyRun& run : runs) {
      const std::unique_ptr<Claim> claim = ClaimRun(options.dir, run);
      if (!claim) continue;
      if (!TrainStudyRun(run.config)) return;
      trained = true;
      if (options.keep_weights) continue;
      for (const char* weights : {"checkpoints", "model"}) {
        fs::remove_all(fs::path(run.config.run.dir) / weights);
      }
    }
  }
}

CopiesEnd DealOut(const std::string& study, int64_t workers, std::span<const StudyRun> runs) {
  std::vector<bool> ended(runs.size());
  const auto count_ended = [&] {
    for (size_t i = 0; i < runs.size(); ++i) ended[i] = ended[i] || HasEnded(runs[i].config);
    return static_cast<int64_t>(std::ranges::count(ended, true));
  };
  Progress bar(study, "run", static_cast<int64_t>(runs.size()), {.begin = count_ended()});
  return RunCopies(static_cast<int>(workers), "--worker",
                   [&] { bar.Update(count_ended(), fmt::format("{} at once", workers)); });
}

}  // namespace augur
