#include "train/run/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/file.h"
#include "base/run_directory.h"
#include "base/tell.h"
#include "base/yaml.h"
#include "metrics/metrics_file.h"
#include "metrics/point_record.h"
#include "metrics/tensorboard.h"
#include "metrics/token_record.h"
#include "metrics/wandb.h"
#include "train/run/lora.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLineFile = "line.json";
// Grow with every step: an abandoned line gets a copy, from which the run may go on again.
constexpr const char* kLogs[] = {kMetricsFile, kTokenRecordsFile, kPointsFile, kTensorBoardDirectory};
// Say what a line came to.
constexpr const char* kResults[] = {"summary.json", kRunModel, kRunAdapter, "report.html", kWandbFile};

void Warn(const std::string& line) { Tell("augur: warning: {}\n", line); }

bool IsCheckpointPath(const std::string& resume) { return resume != "never" && resume != "auto"; }

std::optional<Line> ReadLine(const fs::path& run) {
  const fs::path path = run / kLineFile;
  if (!fs::is_regular_file(path)) return std::nullopt;
  const Json json = ParseJson(ReadFile(path), path.string());
  std::string resume = RequireString(json, "resume", path.string());
  if (IsCheckpointPath(resume)) resume = fs::weakly_canonical(fs::absolute(run) / resume).string();
  return Line{resume, json.contains("moving") ? RequireString(json, "moving", path.string()) : ""};
}

// A checkpoint of the run's own is named relative to it: the run may be moved as a whole.
void WriteLine(const fs::path& run, const Line& line) {
  const fs::path from_here =
      fs::path(line.resume).lexically_relative(fs::weakly_canonical(fs::absolute(run)));
  const bool own = IsCheckpointPath(line.resume) && !from_here.empty() && *from_here.begin() != "..";
  Json json = {{"resume", own ? from_here.string() : line.resume}};
  if (!line.moving.empty()) json["moving"] = line.moving;
  WriteFileAtomically(run / kLineFile, json.dump(2) + "\n");
}

void MoveIfThere(const fs::path& from, const fs::path& to) {
  if (!fs::exists(from) || fs::exists(to)) return;
  std::error_code fault;
  fs::rename(from, to, fault);
  if (!fault) return;
  // The checkpoints may lie on another disk.
  fs::copy(from, to, fs::copy_options::recursive);
  fs::remove_all(from);
}

void CopyIfThere(const fs::path& from, const fs::path& to) {
  if (fs::exists(from))
    fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
}

void MoveEverything(const fs::path& run, const CheckpointStore& store, const fs::path& folder) {
  fs::create_directories(folder);
  for (const char* name : kLogs) MoveIfThere(run / name, folder / name);
  for (const char* name : kResults) MoveIfThere(run / name, folder / name);
  MoveIfThere(run / kRunConfig, folder / kRunConfig);
  store.MoveAfter(-1, folder);
}

// Whether the directory's run, as it was started last, computes what this one does.
bool SameConfig(const fs::path& run, const Resume::Changes& changes) {
  try {
    return changes(run / kRunConfig).empty();
  } catch (const Error&) {  // of another kind of run, or damaged
    return false;
  }
}

// A run that came to its end.
bool IsComplete(const fs::path& run) {
  return fs::exists(run / "summary.json") || fs::exists(run / kRunModel) || fs::exists(run / kRunAdapter);
}

bool BeganElsewhere(const std::optional<Line>& line) { return line && IsCheckpointPath(line->resume); }

// Whether the path is the directory or file `whole`, or lies in it.
bool IsWithin(const fs::path& path, const fs::path& whole) {
  std::error_code fault;
  const fs::path inner = fs::weakly_canonical(fs::absolute(path), fault);
  const fs::path outer = fs::weakly_canonical(fs::absolute(whole), fault);
  const fs::path from_there = inner.lexically_relative(outer);
  return !path.empty() && !from_there.empty() && *from_there.begin() != "..";
}

bool IsNumber(const std::string& text) {
  return text.size() < 19 && text.find_first_not_of("0123456789") == std::string::npos;
}

// Whether a change of the configuration, "key: before -> now", is one that no checkpoint can be read with.
bool ShapesCheckpoint(const std::string& change, const LoraSection& lora) {
  const auto is_one_of = [&](std::initializer_list<std::string_view> keys) {
    return std::ranges::any_of(keys, [&](std::string_view key) { return change.starts_with(key); });
  };
  const bool makes_adapters = lora.rank > 0 && lora.adapter.empty();
  return is_one_of({"train.optimizer_dtype:", "sft.optimizer_dtype:"}) ||
         (lora.adapter.empty() && is_one_of({"lora.rank:"})) ||
         (makes_adapters && is_one_of({"lora.targets:", "lora.modules_to_save:"}));
}

// A configuration as a run writes it, which names every section.
bool IsSavedConfig(const fs::path& file) {
  if (!fs::is_regular_file(file)) return false;
  try {
    const YamlNode document = ParseYaml(ReadFile(file), file.string());
    const auto complete = [&](const FieldList& fields) {
      return std::ranges::all_of(fields.sections(), [&](const FieldSection& section) {
        return document.Find(section.name) != nullptr;
      });
    };
    RlConfig train;
    SftConfig sft;
    return complete(FieldsOf(train)) || complete(FieldsOf(sft));
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void RefuseFilesOfOthers(const fs::path& run) {
  const CheckpointStore store(run);
  const bool is_run = !store.Steps().empty() || store.Pointer() || fs::exists(run / kLineFile) ||
                      IsSavedConfig(run / kRunConfig);
  if (is_run) return;
  std::vector<std::string> found;
  const auto look = [&](const char* name) {
    if (fs::exists(run / name) && !fs::is_empty(run / name)) found.emplace_back(name);
  };
  look(kRunConfig);
  for (const char* name : kLogs) look(name);
  for (const char* name : kResults) look(name);
  std::erase(found, kWandbFile);  // may be there before the configuration is
  if (!found.empty()) ThrowFilesOfOthers(run, found);
}

Resume::Resume(const RunSection& run, const CheckpointStore& store)
    : run_(run), store_(store), directory_(run.dir), line_(ReadLine(directory_)) {
  store.TidyUnfinished();
  if (!line_ || line_->moving.empty()) return;
  MoveEverything(directory_, store, store.directory() / line_->moving);
  line_->moving.clear();
  WriteLine(directory_, *line_);
}

// The checkpoint run.resume names, as an absolute path; nothing for auto and never.
std::optional<fs::path> Resume::Requested() const {
  if (run_.resume == "auto" || run_.resume == "never") return std::nullopt;
  if (!IsNumber(run_.resume)) {
    const fs::path path = fs::weakly_canonical(fs::absolute(run_.resume));
    return path.filename().empty() ? path.parent_path() : path;
  }
  return fs::weakly_canonical(fs::absolute(store_.PathOf(std::stoll(run_.resume))));
}

// There is none, though the pointer names one or the run came to its end.
bool Resume::LostCheckpoints() const {
  return store_.Steps().empty() && (store_.Pointer() || (IsRun(directory_) && IsComplete(directory_)));
}

ResumePlan Resume::GoOn(const Changes& config_changes) const {
  ResumePlan plan;
  const bool had_checkpoints = !store_.Steps().empty();
  plan.checkpoint = store_.FindCurrent(Warn);
  if (plan.checkpoint) return plan;
  if (LostCheckpoints() && store_.Pointer()) {
    throw Error(directory_.string(),
                fmt::format("the run stands at step {}, and its checkpoints are gone", *store_.Pointer()),
                "put them back, set run.dir to another directory, or begin anew with run.resume=never, which "
                "moves aside what is here");
  }
  if (BeganElsewhere(line_)) {  // and has saved nothing of its own yet
    if (const auto why = store_.WhyDamaged(line_->resume)) {
      throw Error(line_->resume, fmt::format("{}, and the run began there", *why),
                  "go on from another checkpoint with run.resume=PATH, or begin anew with run.resume=never");
    }
    plan.checkpoint = line_->resume;
    return plan;
  }
  // What is there without a checkpoint is computed again, unless it is of another run or was complete.
  const bool other = IsRun(directory_) && (LostCheckpoints() || !SameConfig(directory_, config_changes));
  plan.leaves_all = had_checkpoints || other;
  if (plan.leaves_all) plan.begins = Line{"auto", ""};
  return plan;
}

ResumePlan Resume::Plan(const Changes& config_changes, const Changes& data_changes) const {
  const std::optional<fs::path> requested = Requested();
  const std::string request = requested ? requested->string() : run_.resume;
  const bool acted = line_ && line_->resume == request && SameConfig(directory_, config_changes) &&
                     !(request == "never" && LostCheckpoints());
  if (request == "auto" || acted) {
    ResumePlan plan = GoOn(config_changes);
    plan.same_line = acted;
    // On data that has changed, `never` means what it says; others are the caller's to refuse.
    const bool anew = request == "never" && plan.checkpoint && !data_changes(*plan.checkpoint).empty();
    if (!anew && request != "auto") {
      Tell("run.resume={} has begun this run already: going on\n", run_.resume);
    }
    if (!anew) return plan;
  }
  ResumePlan plan;
  plan.begins = Line{request, ""};
  plan.leaves_all = true;
  if (!requested) return plan;
  if (const auto why = store_.WhyDamaged(*requested))
    throw Error(requested->string(), *why, CheckpointsHere());
  plan.checkpoint = requested;
  const fs::path home = requested->parent_path();
  const fs::path own = fs::weakly_canonical(fs::absolute(store_.directory()));
  plan.leaves_all = home != own;
  if (home.parent_path() == own) plan.history = home;  // an abandoned line is taken up again
  return plan;
}

std::string Resume::CheckpointsHere() const {
  const std::vector<int64_t> steps = store_.Steps();
  return fmt::format("run.resume wants a step or a checkpoint's directory (global_step_N); {}",
                     steps.empty() ? "there is none here"
                                   : fmt::format("here are those of step {}", fmt::join(steps, ", ")));
}

// The line's file first: whatever interrupts the move, the next start finishes it.
void Resume::LeaveAll(const Line& line) const {
  if (!IsRun(directory_) && store_.Steps().empty() && !store_.Pointer()) return;
  const fs::path folder = store_.MakeAbandoned();
  CopyIfThere(directory_ / kLineFile, folder / kLineFile);
  WriteLine(directory_, {line.resume, folder.filename().string()});
  MoveEverything(directory_, store_, folder);
  Tell("moved the run that was here to {}\n", folder.string());
}

// The pointer first: from then on the run stands at `step`, whatever interrupts the move.
void Resume::LeaveAfter(int64_t step) const {
  store_.Point(step);
  const fs::path folder = store_.MakeAbandoned();
  for (const char* name : kLogs) CopyIfThere(directory_ / name, folder / name);
  for (const char* name : {kRunConfig, kLineFile}) CopyIfThere(directory_ / name, folder / name);
  for (const char* name : kResults) MoveIfThere(directory_ / name, folder / name);
  store_.MoveAfter(step, folder);
  Tell("moved what lay behind step {} to {}\n", step, folder.string());
}

bool Resume::LeavesSteps(const ResumePlan& plan, int64_t step) const {
  if (plan.leaves_all || !plan.checkpoint) return plan.leaves_all;
  const std::vector<int64_t> steps = store_.Steps();
  const bool behind = !steps.empty() && steps.back() > step;
  const bool other = plan.begins || (!plan.changed.empty() && !plan.same_line);
  return behind || (other && LastStep(directory_ / kMetricsFile) > step);
}

void Resume::RefuseToMove(const ResumePlan& plan, int64_t step,
                          const std::vector<std::string>& inputs) const {
  if (!LeavesSteps(plan, step)) return;
  std::vector<fs::path> moved;
  for (const char* name : kResults) moved.push_back(directory_ / name);
  for (const int64_t later : store_.Steps()) {
    if (plan.leaves_all || later > step) moved.push_back(store_.PathOf(later));
  }
  if (plan.leaves_all) {
    for (const char* name : kLogs) moved.push_back(directory_ / name);
  }
  for (const std::string& input : inputs) {
    for (const fs::path& path : moved) {
      if (!IsWithin(input, path)) continue;
      throw Error(input, "is part of the run that would be moved aside, and this run needs it",
                  "set run.dir to another directory");
    }
  }
}

void Resume::CarryOut(const ResumePlan& plan, int64_t step, int64_t figures_step) const {
  if (plan.leaves_all) {
    LeaveAll(*plan.begins);
  } else if (LeavesSteps(plan, step)) {
    LeaveAfter(step);
  }
  if (plan.history) {
    for (const char* name : kLogs) CopyIfThere(*plan.history / name, directory_ / name);
  }
  KeepLinesUpToStep(directory_ / kMetricsFile, figures_step);
  for (const char* name : {kTokenRecordsFile, kPointsFile}) KeepLinesUpToStep(directory_ / name, step);
  if (plan.begins) WriteLine(directory_, *plan.begins);
}

void RefuseChanges(const RunSection& run, const LoraSection& lora, const fs::path& checkpoint,
                   const std::vector<std::string>& changed) {
  std::vector<std::string> fixed;
  std::ranges::copy_if(changed, std::back_inserter(fixed),
                       [&](const std::string& change) { return ShapesCheckpoint(change, lora); });
  if (!fixed.empty()) {
    throw Error(
        checkpoint.string(), fmt::format("was made with another configuration: {}", fmt::join(fixed, ", ")),
        "what it holds has another shape with that: set it back, set run.dir to another directory, or "
        "begin anew with run.resume=never");
  }
  if (changed.empty() || run.resume_changed) return;
  throw Error(checkpoint.string(),
              fmt::format("was made with another configuration or other files: {}", fmt::join(changed, ", ")),
              "set them back, go on regardless with run.resume_changed=true, or begin anew with "
              "run.resume=never");
}

}  // namespace augur
