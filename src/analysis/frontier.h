// Where training breaks: runs over a grid of settings, and the part of it that each arm survives.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analysis/comparison.h"
#include "base/json.h"

namespace augur {

// One setting of the grid and the values it takes, as text.
struct FrontierAxis {
  std::string name;
  std::vector<std::string> values;
};

// The number of cells: the product of the axes' values.
size_t CellCount(std::span<const FrontierAxis> axes);
// A cell's value on each axis, as an index; the first axis varies fastest.
std::vector<size_t> CellPlace(std::span<const FrontierAxis> axes, size_t cell);

struct FrontierArm {
  std::string name, rule;
  std::vector<std::vector<RunOutcome>> cells;  // by cell, then by seed; the same seeds everywhere
};

struct FrontierOptions {
  double level = 0.95;  // of the bootstrap intervals
  int64_t resamples = 10000;
};

// Whether a run broke: its accuracy fell below half of its best so far, it ended below its start, or nothing
// finite was left. Runs that are not finished have not broken yet.
bool IsBroken(const RunOutcome& run);

// frontier.json. A cell's `updates` are those of a step, mean over steps and runs. An arm's `surviving` is
// the share of the grid that it survives, seed by seed; the interval is over seeds, and differences from the
// first arm are paired by seed. Seeds of which a run is missing are left out of both, and null in `by_seed`.
Json SummarizeFrontier(std::span<const FrontierAxis> axes, std::span<const FrontierArm> arms,
                       const FrontierOptions& options);
// One line per run.
std::string FrontierCsv(std::span<const FrontierAxis> axes, std::span<const FrontierArm> arms);

}  // namespace augur
