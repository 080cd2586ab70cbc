// `augur analyze`: the paper's token-level study of direction criteria (section 4.2), on any model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/config.h"

namespace augur {

struct AnalyzeOptions {
  int64_t seeds = 8;
  // Responses in a seed's batch; rounded up to whole groups and minibatches.
  int64_t sequences = 1024;
  // Training steps before the batch is measured, so that the optimizer has its averages and the policy has
  // moved as it does in a run. At least rollout.staleness.
  int64_t warmup = 4;
  // Minibatches of the measured batch that are learned from, under the configured mask, before the one that
  // is measured. The batch is divided evenly.
  int64_t preceding = 3;
  // Outside tokens of each seed and divergence whose change is split by cause.
  int64_t decomposed = 32;
  // Which divergences define the trust region; all of them where none is named.
  std::vector<Proximity> divergences;
};

// Where in the directory of a study the records of its seeds lie: by what decides them, so that a study with
// other settings, or other files of the model or the data, does not take them for its own.
std::filesystem::path SeedFolder(const RlConfig& config, const AnalyzeOptions& options);

// Throws Error for configurations it cannot take apart (a loss other than the masked one, a KL term).
void CheckAnalyzable(const RlConfig& config);

// Measures each seed that has no record in `folder` and that no other process is at, and writes its record.
// Everything starts from the model as it is on disk, for each seed anew. `progress` is called after each with
// the outside tokens found so far.
void MeasureSeeds(const RlConfig& config, const AnalyzeOptions& options, const std::filesystem::path& folder,
                  const std::function<void(int64_t outside)>& progress);

// How many of the seeds have a record.
int64_t CountMeasured(const RlConfig& config, const AnalyzeOptions& options,
                      const std::filesystem::path& folder);

struct AnalyzeResult {
  Json analysis;    // analysis.json
  std::string csv;  // analysis_tokens.csv
};

// What the records in `folder` say together. Throws Error where there is none, and where no token of any seed
// is outside, saying what to change.
AnalyzeResult SummarizeSeeds(const RlConfig& config, const AnalyzeOptions& options,
                             const std::filesystem::path& folder);

}  // namespace augur
