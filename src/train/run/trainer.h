// `augur train`: prompts → rollouts → rewards → advantages → updates → new weights, and again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "config/config.h"
#include "metrics/step_metrics.h"
#include "train/run/run_loop.h"

namespace augur {

struct TrainOptions {
  // Write what every update of the first step starts from, its gradient and its result to this directory and
  // end there; for tests that hold Augur to other implementations.
  std::filesystem::path dump;
  // Corrupt the gradient of this step's first update with a NaN, to see the guard at work; 0: never.
  int64_t corrupt_gradient_step = 0;
  // Called with the resolved configuration when the run begins; `anew` where it leaves steps of its
  // directory.
  std::function<void(const std::string& yaml, bool anew)> begins;
  // Called with each step's metrics once they are in the run directory.
  std::function<void(int64_t step, const Metrics& metrics)> logged;
  // Called after each evaluation, when its figures are in the run directory.
  std::function<void()> evaluated;
};

struct TrainOutcome : RunResult {
  std::optional<double> before, after;  // accuracy on eval.files, before the first step and at the end
};

// Runs to train.steps, or until a signal asks to stop; resumes as run.resume says (train/run/resume.h).
// Progress goes to standard error. Writes config.yaml, metrics.jsonl, tensorboard/, points.jsonl,
// tokens.jsonl, checkpoints/, and at the end model/ and summary.json.
TrainOutcome RunTraining(const RlConfig& config, const TrainOptions& options);

}  // namespace augur
