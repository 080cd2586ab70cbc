#include "train/run/run_loop.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <optional>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hub.h"
#include "base/run_directory.h"
#include "base/run_lock.h"
#include "base/tell.h"
#include "base/yaml.h"
#include "data/fingerprint.h"
#include "metrics/metrics_file.h"
#include "metrics/tensorboard.h"
#include "model/load.h"
#include "ops/device.h"
#include "ops/out_of_memory.h"
#include "ops/parallel/ranks.h"
#include "ops/parallel/together.h"
#include "rollout/device.h"
#include "train/checkpoint/checkpoint.h"
#include "train/parallel/shard_groups.h"
#include "train/parallel/stop.h"
#include "train/run/resume.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

// A figure that is not finite, which JSON lacks, is null.
Json FiguresToJson(const Metrics& figures) {
  Json json = Json::object();
  for (const auto& [name, value] : figures) json[name] = std::isfinite(value) ? Json(value) : Json();
  return json;
}

Metrics FiguresFromJson(const Json& json) {
  Metrics figures;
  for (const auto& [name, value] : json.items()) {
    figures[name] = value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
  }
  return figures;
}

// Whether a configuration has the section. A damaged file has none: the checkpoints say where a run stands.
bool HasSection(const fs::path& file, const std::string& name) {
  try {
    return ParseYaml(ReadFile(file), file.string()).Find(name) != nullptr;
  } catch (const Error&) {
    return false;
  }
}

// Whether a change of the configuration, "key: before -> now", leaves responses as they were generated and
// scored: what they are learned with, or measured on.
bool ConcernsLearningAlone(const std::string& change) {
  constexpr std::string_view kSections[] = {"mask.", "algorithm.", "train.", "eval."};
  return std::ranges::any_of(kSections,
                             [&](std::string_view section) { return change.starts_with(section); });
}

// What the run reads at every start, so that a resumed one depends on it.
std::vector<FileFingerprint> FilesNow(const RunSetup& setup) {
  std::vector<FileFingerprint> files = Fingerprint(setup.data_files);
  const auto add = [&](std::vector<FileFingerprint> more) {
    files.insert(files.end(), more.begin(), more.end());
  };
  add(FingerprintText(ModelDirectory(setup.model.path)));
  for (const std::string& model : setup.frozen_models) add(FingerprintWeights(ModelDirectory(model)));
  return files;
}

class Loop {
 public:
  Loop(const RunSetup& setup, StepWork& work);
  RunResult ToEnd();

 private:
  void Begin();
  void ExpectSameSetup() const;
  ResumePlan MakePlan(std::optional<Resume>* resume) const;
  void RefuseOtherCommand() const;
  void RefuseChangesToNothing(const ResumePlan& plan) const;
  std::vector<std::string> Inputs() const;
  std::vector<std::string> DataChanges(const fs::path& checkpoint) const;
  void Load(const fs::path& checkpoint, bool keep_waiting);
  void Steps();
  void FinishStep();
  bool Savable(const std::exception& fault);
  void SaveFinishedStep(const std::exception& fault);
  void LogUnevaluated();
  void WriteMetrics(const Metrics& figures);
  void Log(const Metrics& figures);
  void Save();
  void WriteState(const fs::path& directory);
  void StartProgress();
  Error OutOfMemoryNow(const std::exception& fault) const;

  const Ranks ranks_ = Ranks::World();
  const RunSetup& setup_;
  StepWork& work_;
  const fs::path run_;
  CheckpointStore store_;
  const std::vector<FileFingerprint> data_;  // the first rank's
  const Json model_config_;
  int64_t step_ = 0;  // finished ones
  double seconds_ = 0;
  int64_t saved_step_ = -1;
  bool saving_ = false;  // or failed to
  // The figures of step_ while its evaluation is to come and they are not in the log.
  std::optional<Metrics> unlogged_;
  bool evaluating_ = false;  // or that failed
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<Progress> progress_;
  std::string stage_;
  StageWatch watch_;
};

Loop::Loop(const RunSetup& setup, StepWork& work)
    : setup_(setup),
      work_(work),
      run_(setup.run.dir),
      store_(run_),
      data_(ranks_.first() ? FilesNow(setup) : std::vector<FileFingerprint>()),
      model_config_(ReadModelConfig(setup.model.path).source) {
  watch_ = [this](const Stage& stage) {
    stage_ = stage.name;
    progress_->Within(stage, step_);
  };
  Begin();
}

void Loop::RefuseOtherCommand() const {
  const fs::path file = run_ / kRunConfig;
  if (setup_.run.resume == "never" || !fs::exists(file)) return;
  const std::string other = setup_.name == "train" ? "sft" : "train";
  if (!HasSection(file, other)) return;
  throw Error(run_.string(), fmt::format("holds a run of augur {}", other),
              "set run.dir to another directory; run.resume=never moves that run aside");
}

// The first rank decides; the others learn where to go on from, and whether that is part of this run.
ResumePlan Loop::MakePlan(std::optional<Resume>* resume) const {
  ResumePlan plan;
  ranks_.OnFirst([&] {
    RefuseOtherCommand();
    resume->emplace(setup_.run, store_);
    const auto data_changes = [this](const fs::path& checkpoint) { return DataChanges(checkpoint); };
    plan = (*resume)->Plan(setup_.config_changes, data_changes);
    if (!plan.checkpoint) return;
    std::vector<std::string> changed = setup_.config_changes(*plan.checkpoint / kCheckpointConfig);
    const std::vector<std::string> files = DataChanges(*plan.checkpoint);
    plan.other_rollouts = !files.empty() || !std::ranges::all_of(changed, ConcernsLearningAlone);
    changed.insert(changed.end(), files.begin(), files.end());
    RefuseChanges(setup_.run, setup_.lora, *plan.checkpoint, changed);
    plan.changed = changed;
    if (const std::string steps = setup_.schedule_change(*plan.checkpoint / kCheckpointConfig);
        !steps.empty()) {
      Tell("{}: from here on the learning rate follows the schedule of the new number\n", steps);
    }
  });
  const std::string from = ranks_.FromFirst(plan.checkpoint ? plan.checkpoint->string() : "");
  if (!from.empty()) plan.checkpoint = from;
  plan.leaves_all = ranks_.Max(plan.leaves_all ? 1 : 0) > 0;
  plan.other_rollouts = ranks_.Max(plan.other_rollouts ? 1 : 0) > 0;
  return plan;
}

// Each rank has read configuration, model and data for itself, from a disk that may be another machine's.
void Loop::ExpectSameSetup() const {
  if (ranks_.alone()) return;
  std::string mine;
  ranks_.Together([&] {
    std::vector<FileFingerprint> files = FilesNow(setup_);
    for (const FileFingerprint& file : FingerprintWeights(ModelDirectory(setup_.model.path))) {
      files.push_back(file);
    }
    mine = setup_.yaml;
    for (const FileFingerprint& file : files) {
      mine += fmt::format("{} ({} bytes, {})\n", file.path, file.size, file.checksum);
    }
  });
  ExpectSame(ranks_, "configuration and files", mine, "give every rank the same");
}

// A run that has come to its end takes no step with the new settings: its figures and its model would speak
// of different ones.
void Loop::RefuseChangesToNothing(const ResumePlan& plan) const {
  if (plan.changed.empty() || step_ < setup_.steps || unlogged_) return;
  const bool own = !plan.leaves_all;
  throw Error((own ? run_ : *plan.checkpoint).string(),
              fmt::format("has come to its last step, {}, with other settings or files: {}", step_,
                          fmt::join(plan.changed, ", ")),
              fmt::format("set them back{} raise the number of steps to go on with them{}",
                          own ? "," : ", or", own ? ", or set run.dir to another directory" : ""));
}

void Loop::Begin() {
  ExpectSameSetup();
  std::optional<Resume> resume;
  ResumePlan plan = MakePlan(&resume);
  while (plan.checkpoint && !store_.CheckTogether(ranks_, *plan.checkpoint)) plan = MakePlan(&resume);
  if (plan.checkpoint) {
    Load(*plan.checkpoint, !plan.other_rollouts);
  } else if (work_.EvaluationDue(0)) {
    unlogged_.emplace();
  }
  ranks_.OnFirst([&] { RefuseChangesToNothing(plan); });
  if (setup_.single_step && step_ >= setup_.steps) {
    throw Error(run_.string(),
                fmt::format("the run has come to its last step, {}: there is none to dump", step_),
                "set run.dir to another directory, or raise train.steps");
  }
  if (plan.checkpoint && !plan.leaves_all) saved_step_ = step_;
  ranks_.Together([] {});  // all have read what the first may move
  ranks_.OnFirst([&] {
    const int64_t kept_step = plan.checkpoint ? step_ : -1;
    const int64_t kept_figures = unlogged_ ? step_ - 1 : kept_step;
    resume->RefuseToMove(plan, kept_step, Inputs());
    if (setup_.begins) setup_.begins(setup_.yaml, resume->LeavesSteps(plan, kept_step));
    resume->CarryOut(plan, kept_step, kept_figures);
    WriteFileAtomically(run_ / kRunConfig, setup_.yaml);
    if (setup_.log.tensorboard) tensorboard_.emplace(run_ / kTensorBoardDirectory, kept_figures);
  });
}

// Files and directories that the run reads.
std::vector<std::string> Loop::Inputs() const {
  std::vector<std::string> inputs = setup_.data_files;
  for (const std::string& model : {setup_.model.path, setup_.model.reference, setup_.lora.adapter}) {
    if (!model.empty()) inputs.push_back(model);
  }
  return inputs;
}

std::vector<std::string> Loop::DataChanges(const fs::path& checkpoint) const {
  const fs::path path = checkpoint / kCheckpointState;
  const Json state = ParseJson(ReadFile(path), path.string());
  try {
    return state.contains("data") ? ChangedFiles(state.at("data"), data_) : std::vector<std::string>();
  } catch (const Json::exception& fault) {
    throw Error(path.string(), fault.what(), kOtherCheckpoint);
  }
}

void Loop::Load(const fs::path& checkpoint, bool keep_waiting) {
  const fs::path path = checkpoint / kCheckpointState;
  const Json state = ParseJson(ReadFile(path), path.string());
  try {
    step_ = state.at("step");
    seconds_ = state.value("train_seconds", 0.0);
    if (state.contains("unlogged")) unlogged_ = FiguresFromJson(state.at("unlogged"));
    work_.Load(step_, checkpoint, state, keep_waiting);
  } catch (const Json::exception& fault) {
    throw Error(path.string(), fault.what(), kOtherCheckpoint);
  }
  if (setup_.log.console) Tell("resuming from {}\n", checkpoint.string());
}

RunResult Loop::ToEnd() {
  const auto outcome = [this, begin = step_](const char* stopped_by) {
    return RunResult{true, step_, begin, seconds_, stopped_by, saved_step_};
  };
  StartProgress();
  try {
    std::optional<StopScope> scope;
    if (ranks_.alone()) scope.emplace();  // several agree on it
    Steps();
  } catch (const Stopped&) {
    if (work_.UndoStep()) {
      if (saved_step_ != step_) Save();
      LogUnevaluated();
    }
    progress_.reset();
    return outcome(StopSignalName());
  } catch (const std::exception& fault) {
    progress_.reset();
    SaveFinishedStep(fault);
    if (!IsOutOfMemory(fault)) throw;
    throw OutOfMemoryNow(fault);
  }
  if (!setup_.single_step && saved_step_ != step_) Save();
  progress_.reset();
  if (!setup_.single_step) work_.Finish(step_, seconds_);
  return outcome("");
}

void Loop::Steps() {
  if (unlogged_) FinishStep();
  while (step_ < setup_.steps) {
    CheckStopTogether();
    const auto start = Clock::now();
    unlogged_ = work_.Step(step_ + 1, watch_);
    ++step_;
    seconds_ += SecondsSince(start);
    FinishStep();
    if (setup_.single_step) return;
    if (setup_.checkpoint.every > 0 && step_ % setup_.checkpoint.every == 0 && saved_step_ != step_) {
      const auto save = Clock::now();
      Save();
      seconds_ += SecondsSince(save);
    }
  }
}

// Whether the state is that of the last finished step. Several ranks can save it together only
// where all of them learned of the fault at the same place.
bool Loop::Savable(const std::exception& fault) {
  if (setup_.single_step || step_ == 0 || saving_) return false;
  if (!ranks_.alone() && !FailedTogether()) return false;
  const bool broke_down = dynamic_cast<const NotFiniteError*>(&fault) != nullptr;
  return ranks_.Max(broke_down || !work_.UndoStep() ? 1 : 0) == 0;
}

// A fault between two updates, such as a reward function that is down, costs no step that came before it.
void Loop::SaveFinishedStep(const std::exception& fault) {
  try {
    if (!Savable(fault)) return;
    if (saved_step_ != step_) Save();
    LogUnevaluated();
  } catch (const std::exception& other) {
    Tell("augur: warning: step {} could not be saved: {}\n", step_, other.what());
    return;
  }
  if (ranks_.first()) {
    Tell("step {} is saved; the same command goes on from there once the error below is mended\n", step_);
  }
}

// The step counts as finished wherever people read it. Resumed, the run writes it again with its evaluation.
void Loop::LogUnevaluated() {
  if (!evaluating_ || step_ == 0) return;
  ranks_.OnFirst([&] { WriteMetrics(*unlogged_); });
}

void Loop::FinishStep() {
  const bool evaluates = work_.EvaluationDue(step_);
  std::string note;
  if (evaluates) {
    const auto start = Clock::now();
    evaluating_ = true;
    note = work_.Evaluate(step_, watch_, &*unlogged_);
    evaluating_ = false;
    if (step_ > 0) seconds_ += SecondsSince(start);
  }
  ranks_.OnFirst([&] {
    Log(*unlogged_);
    if (evaluates && setup_.evaluated) setup_.evaluated();
  });
  if (step_ == 0) {
    StartProgress();  // the time left is that of steps
  } else {
    progress_->Update(step_, work_.Headline(*unlogged_));
  }
  if (!note.empty()) progress_->Note(note);
  unlogged_.reset();
}

void Loop::StartProgress() {
  progress_.emplace(setup_.name, "step", setup_.steps,
                    ProgressOptions{.shown = setup_.log.console, .begin = step_});
}

void Loop::WriteMetrics(const Metrics& figures) {
  AppendMetrics(run_, step_, figures);
  if (tensorboard_) tensorboard_->Write(step_, figures);
}

void Loop::Log(const Metrics& figures) {
  WriteMetrics(figures);
  if (setup_.logged) setup_.logged(step_, figures);
}

// Each rank writes its part; the first makes a checkpoint of them.
void Loop::Save() {
  saving_ = true;
  try {
    ranks_.OnFirst([&] { store_.Begin(step_); });
    ranks_.Together([&] { WriteState(store_.Unfinished(step_)); });
    const FileSums sums = SumFilesTogether(ranks_, store_.Unfinished(step_));
    ranks_.OnFirst([&] { store_.Publish(step_, setup_.checkpoint.keep, sums); });
  } catch (const FailedElsewhere& fault) {
    if (ranks_.first()) store_.GiveUp(step_, fault);
    throw;
  } catch (const LostRank& fault) {
    if (ranks_.first()) store_.GiveUp(step_, fault);
    throw;
  } catch (const std::exception& fault) {
    throw store_.GiveUp(step_, fault);
  }
  saving_ = false;
  saved_step_ = step_;
}

void Loop::WriteState(const fs::path& directory) {
  Json state = work_.Save(directory);
  if (!ranks_.first()) return;
  state["step"] = step_;
  state["train_seconds"] = seconds_;
  if (unlogged_) state["unlogged"] = FiguresToJson(*unlogged_);
  state["data"] = ToJson(data_);
  state["model"] = {{"path", fs::absolute(ModelDirectory(setup_.model.path)).lexically_normal().string()},
                    {"dtype", setup_.model.precision == Precision::kFp32 ? "fp32" : "bf16"},
                    {"config", model_config_}};
  WriteFileAtomically(directory / kCheckpointState, state.dump(2) + "\n");
  WriteFileAtomically(directory / kCheckpointConfig, setup_.yaml);
}

Error Loop::OutOfMemoryNow(const std::exception& fault) const {
  const int64_t step = evaluating_ ? step_ : step_ + 1;
  return OutOfMemory(fmt::format("step {}{}{}", step, stage_.empty() ? "" : ", ", stage_), fault,
                     work_.MemoryRemedy(stage_));
}

// Where auto cannot take a GPU that is there.
void WarnOfUnusedGpu(const RunSection& run) {
  if (run.device != "auto" || HasUsableGpu() || !fs::exists("/dev/nvidia0")) return;
  if (!BuiltWithCuda()) {
    Tell(
        "augur: warning: this machine has a GPU, and this build of Augur, made without nvcc, runs on CPUs "
        "alone; install it again with nvcc on PATH, or say run.device=cpu\n");
  } else if (at::globalContext().hasCUDA()) {
    Tell("augur: warning: this runs on the CPU; GPU: {}\n", GpuDescription());
  }
}

// Whether the run directory that this process sees is the one that holds `mark`. What another machine has
// just written may come a little later.
bool SeesMark(const fs::path& run, const std::string& mark) {
  constexpr auto kWait = std::chrono::seconds(5);
  for (const auto start = Clock::now(); Clock::now() - start < kWait;) {
    std::ifstream file(run / kRunLockFile);
    if (std::string found; std::getline(file, found) && found == mark) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

// A run directory of each machine's own would fail at the first checkpoint.
void ExpectSharedDirectory(const Ranks& ranks, const fs::path& run, const std::optional<RunLock>& lock) {
  if (ranks.alone()) return;
  std::string mark;
  ranks.OnFirst([&] {
    std::random_device random;
    mark = fmt::format("{:08x}{:08x}", random(), random());
    lock->Mark(mark);
  });
  mark = ranks.FromFirst(mark);
  ranks.Together([&] {
    if (SeesMark(run, mark)) return;
    throw Error("run.dir",
                fmt::format("{} is not the first rank's run directory", fs::absolute(run).string()),
                "set run.dir to a directory that all machines share");
  });
}

}  // namespace

RunResult RunToEnd(const RunSetup& setup, const std::function<StepWork&()>& make) {
  SetThreads(setup.run.threads);
  SetDeterministic(setup.run.deterministic);
  const Ranks ranks = Ranks::World();
  for (const Ranks& group : {ranks, CurrentShardGroups().within, CurrentShardGroups().across}) {
    group.SetTimeout(setup.parallel.timeout_s);
  }
  const StopSignals signals;
  const StopOnLostReader lost_reader;
  if (ranks.alone() && StopSignals::Received() != nullptr) return StoppedBeforeItBegan();
  std::optional<RunLock> lock;
  ranks.OnFirst([&] {
    lock.emplace(setup.run.dir);
    RefuseFilesOfOthers(setup.run.dir);
    WarnOfUnusedGpu(setup.run);
  });
  ExpectSharedDirectory(ranks, setup.run.dir, lock);
  StepWork* work = nullptr;
  try {
    ranks.Together([&] {
      try {
        const StopScope scope;
        work = &make();
      } catch (const Stopped&) {
        if (ranks.alone()) throw;  // several agree on it
      }
    });
    if (!ranks.alone()) CheckStopTogether();
  } catch (const Stopped&) {
    return StoppedBeforeItBegan();
  } catch (const std::exception& fault) {
    if (!IsOutOfMemory(fault)) throw;
    throw OutOfMemory(
        setup.model.path, fault,
        "the model does not fit: take a smaller one, model.precision bf16, optimizer_dtype bf16, or "
        "a device with more memory");
  }
  try {
    return Loop(setup, *work).ToEnd();
  } catch (const Stopped&) {  // before the first step
    return StoppedBeforeItBegan();
  }
}

RunResult StoppedBeforeItBegan() { return {.began = false, .stopped_by = StopSignalName()}; }

std::string_view NothingToDo(const RunResult& outcome) {
  const bool complete = outcome.steps > 0 && outcome.first_step == outcome.steps;
  return complete ? "; it was complete, and nothing was left to do" : "";
}

std::string StopMessage(const RunResult& outcome, int64_t steps) {
  if (!outcome.began) {
    return fmt::format("stopped by {} before it began; nothing was changed. The same command goes on.",
                       outcome.stopped_by);
  }
  if (outcome.saved_step == outcome.steps) {
    return fmt::format("stopped by {} after step {} of {}; saved. The same command goes on from there.",
                       outcome.stopped_by, outcome.steps, steps);
  }
  if (outcome.saved_step < 0) {
    return fmt::format("stopped by {} after step {} of {}; nothing was saved. The same command begins again.",
                       outcome.stopped_by, outcome.steps, steps);
  }
  return fmt::format(
      "stopped by {} after step {} of {}, amid the updates of the next one. The same command goes on from "
      "step "
      "{}, which was saved.",
      outcome.stopped_by, outcome.steps, steps, outcome.saved_step);
}

}  // namespace augur
