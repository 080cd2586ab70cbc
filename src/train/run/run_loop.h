// The loop that every run goes through: one process per directory, resume, steps, evaluations, figures,
// checkpoints, signals. What a step computes, StepWork says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/stop_signals.h"
#include "config/config.h"
#include "metrics/progress.h"
#include "metrics/step_metrics.h"

namespace augur {

// Told what a step is at, as often as there is news.
using StageWatch = std::function<void(const Stage&)>;

// What `train` and `sft` differ in. The state is that between two steps wherever no call is under way.
class StepWork {
 public:
  virtual ~StepWork() = default;

  // Takes step `step`, from 1, and returns its figures. Throws Stopped on a signal; UndoStep follows whatever
  // it throws.
  virtual Metrics Step(int64_t step, const StageWatch& watch) = 0;
  // Puts the state back to that before the step under way, if there is one; false where that cannot be had.
  virtual bool UndoStep() = 0;
  // What of the figures the progress line shows.
  virtual std::string Headline(const Metrics& metrics) const = 0;

  // Whether an evaluation follows step `step`; 0: goes before the first one.
  virtual bool EvaluationDue(int64_t /*step*/) const { return false; }
  // Adds its figures; returns a line about them, or "". Throws Stopped, with nothing changed.
  virtual std::string Evaluate(int64_t /*step*/, const StageWatch& /*watch*/, Metrics* /*metrics*/) {
    return "";
  }

  // Writes the state to a checkpoint's directory; returns what state.json shall hold of it.
  virtual Json Save(const std::filesystem::path& directory) = 0;
  // The reverse. Responses that wait to be learned from are dropped without `keep_waiting`. Throws Error
  // where the files do not fit, Json::exception where state.json does not.
  virtual void Load(int64_t step, const std::filesystem::path& directory, const Json& state,
                    bool keep_waiting) = 0;

  // Writes what the run came to; `seconds` were spent on its steps.
  virtual void Finish(int64_t step, double seconds) = 0;

  // What to do when the memory of the device does not suffice for this stage.
  virtual std::string MemoryRemedy(std::string_view stage) const = 0;
};

// What the loop needs to know of a configuration, which must outlive it.
struct RunSetup {
  std::string name;  // "train", "sft"
  const RunSection& run;
  const ModelSection& model;
  const LoraSection& lora;
  const ParallelSection& parallel;
  const CheckpointSection& checkpoint;
  const LogSection& log;
  int64_t steps = 0;
  std::vector<std::string> data_files;
  std::vector<std::string> frozen_models;  // whose weights do not come from the checkpoint on resume
  std::string yaml;                        // every key
  // Names the keys in which a saved configuration computes something else.
  std::function<std::vector<std::string>(const std::filesystem::path& file)> config_changes;
  // Names the change of steps that gives the learning rate another course; empty where there is none.
  std::function<std::string(const std::filesystem::path& file)> schedule_change;
  // Called with `yaml` when all checks have passed and nothing in the run directory has changed yet; `anew`
  // where steps that are there will be moved aside.
  std::function<void(const std::string& yaml, bool anew)> begins = {};
  // Called with each step's figures once they are in the run directory.
  std::function<void(int64_t step, const Metrics& figures)> logged = {};
  // Called after each evaluation, when its figures are in the run directory.
  std::function<void()> evaluated = {};
  // End after one step and save nothing.
  bool single_step = false;
};

struct RunResult {
  bool began = true;       // false: stopped while the model was loaded
  int64_t steps = 0;       // finished
  int64_t first_step = 0;  // those that were when it began
  double seconds = 0;      // spent on them
  std::string stopped_by;  // the signal that ended it early, or empty
  // Where the same command goes on, where it was stopped; -1: it begins again.
  int64_t saved_step = -1;
};

// Runs to setup.steps, or until a signal asks to stop. `make` loads and checks everything the work needs;
// what it returns must live until the end. Only then is anything in the run directory changed.
RunResult RunToEnd(const RunSetup& setup, const std::function<StepWork&()>& make);

// A run that a signal stopped before RunToEnd.
RunResult StoppedBeforeItBegan();

// "; it was complete, and nothing was left to do" of a run that had all its steps; otherwise "".
std::string_view NothingToDo(const RunResult& outcome);

// "stopped by SIGTERM after step 12 of 60; saved. The same command goes on from there."
std::string StopMessage(const RunResult& outcome, int64_t steps);

}  // namespace augur
