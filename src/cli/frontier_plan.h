// The runs of a frontier: every arm at every cell of the grid with every seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "analysis/frontier.h"
#include "config/config.h"

namespace augur {

// One run, known by its place.
struct FrontierRun {
  size_t arm = 0, cell = 0;
  int64_t seed = 0;
  std::string name;  // "ARM/CELL/seed-N", its directory within the plan's
};

struct FrontierPlan {
  std::filesystem::path dir;
  std::vector<FrontierAxis> axes;
  std::vector<std::string> arms;
  std::vector<std::string> rules;  // FormatRule of each arm
  std::vector<int64_t> seeds;
  std::vector<FrontierRun> runs;  // seed by seed, so that a half-done frontier is a fair one

  // The configuration of a run. Axes: lr_factor multiplies train.lr; updates_per_batch sets train.minibatch
  // and train.epochs so that a whole batch of responses gives that many updates, and one of which groups are
  // left out fewer; any other is a key of its own, or mask.
  RlConfig ConfigOf(const FrontierRun& run) const;
  std::filesystem::path DirectoryOf(const FrontierRun& run) const { return dir / run.name; }

  std::string base;                                 // a file of augur train's
  std::vector<std::vector<std::string>> overrides;  // of each arm
};

struct FrontierPlanOptions {
  std::vector<std::string> words;  // the file, and key=value for every run
  std::string dir;                 // empty: the file's
  int64_t seeds = 0;               // 0: the file's, or 4
  int64_t first_seed = 0;
};

// Reads the file and, before anything is trained, every configuration it asks for. Throws Error where one
// does not hold, or does not evaluate: the start and the end of a run must be known.
FrontierPlan MakeFrontierPlan(const FrontierPlanOptions& options);

}  // namespace augur
