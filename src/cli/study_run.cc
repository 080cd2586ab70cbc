#include "cli/study_run.h"

#include <fmt/format.h>

#include <filesystem>

#include "analysis/comparison.h"
#include "base/error.h"
#include "config/read.h"
#include "config/write.h"
#include "train/run/trainer.h"

namespace augur {

namespace fs = std::filesystem;

void ExpectSameConfig(const RlConfig& config) {
  const fs::path run = config.run.dir;
  const std::vector<std::string> changed = ChangedKeys(ReadRlConfig(run / "config.yaml"), config);
  if (!changed.empty()) {
    throw Error(run.string(), fmt::format("was trained with another configuration: {}", changed.front()),
                "choose another --dir, or remove that run");
  }
}

bool IsFinished(const RlConfig& config) {
  if (!fs::exists(fs::path(config.run.dir) / "summary.json")) return false;
  ExpectSameConfig(config);
  return ReadRunOutcome(config.run.dir, config.run.seed, config.train.steps).finished;
}

bool TrainOne(const RlConfig& config, std::string* failure) {
  try {
    return RunTraining(config, {}).stopped_by.empty();
  } catch (const NotFiniteError& error) {
    *failure = error.what();
    fmt::print(stderr, "augur: warning: {}\n", error.what());
    return true;
  }
}

}  // namespace augur
