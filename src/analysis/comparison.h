// Masks compared over seeds: figures of each run, and what they say together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace augur {

// One training run as its directory tells it.
struct RunOutcome {
  int64_t seed = 0;
  bool finished = false;
  std::string note;         // why not
  bool broke_down = false;  // it ended because nothing finite was left
  // "accuracy" (held out, mean over data sources), "reward", "response_length", "ppo_kl", "clip_fraction",
  // "outside", "updates" (of the weights) over steps.
  std::map<std::string, std::vector<std::pair<int64_t, double>>> curves;

  // A run that broke down has neither of these: its evaluations say what was before.
  double FinalAccuracy() const;                   // of the last evaluation; NaN without one
  double AreaUnderAccuracy() const;               // mean height of the accuracy curve over steps (trapezoids)
  double MeanOf(const std::string& curve) const;  // over all steps
  double Late(const std::string& curve) const;    // over the last tenth of them
  // It broke down, or its last accuracy is below half of its best.
  bool Collapsed() const;
};

struct ComparisonArm {
  std::string name, rule;
  std::vector<RunOutcome> runs;  // the same seeds in every arm
};

// Reads metrics.jsonl; what cannot be read is told in `note`. `steps` is where a finished run stands;
// what a longer one did after it is left out.
RunOutcome ReadRunOutcome(const std::filesystem::path& run, int64_t seed, int64_t steps);

struct ComparisonOptions {
  double level = 0.95;  // of the intervals (Student's t over seeds)
  int64_t steps = 0;
};

// With fewer seeds than this, intervals are wide and their assumption, normal figures, weighs.
inline constexpr int64_t kFewSeeds = 5;

// compare.json. Differences are paired by seed, against the first arm; seeds that did not finish in both are
// left out of them, and null in `by_seed`.
Json SummarizeComparison(std::span<const ComparisonArm> arms, const ComparisonOptions& options);
// One line per run.
std::string ComparisonCsv(std::span<const ComparisonArm> arms);

}  // namespace augur
