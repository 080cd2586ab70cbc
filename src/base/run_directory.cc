#include "base/run_directory.h"

#include "base/error.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

bool HasCheckpoint(const fs::path& directory) {
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, none)) {
    if (IsCheckpoint(entry.path())) return true;
  }
  return false;
}

}  // namespace

bool IsCheckpoint(const fs::path& directory) {
  return fs::exists(directory / kCheckpointManifest) && fs::exists(directory / kCheckpointState);
}

bool IsRun(const fs::path& directory) {
  return fs::exists(directory / kRunConfig) &&
         (fs::exists(directory / "metrics.jsonl") || fs::is_directory(directory / kCheckpoints));
}

void RefuseRunDirectory(const fs::path& directory) {
  const std::string name = directory.string();
  const std::string remedy = fmt::format("make a model of it with `augur export {} OUT`", name);
  if (IsCheckpoint(directory)) throw Error(name, "is a checkpoint, not a model", remedy);
  if (IsRun(directory)) {
    const fs::path model = directory / kRunModel;
    throw Error(
        name, "is the directory of a run, not a model",
        fs::exists(model / "config.json")
            ? fmt::format("name {}, or make a model of the newest checkpoint with `augur export {} OUT`",
                          model.string(), name)
            : fmt::format("make a model of its newest checkpoint with `augur export {} OUT`", name));
  }
  if (HasCheckpoint(directory)) {
    throw Error(name, "holds the checkpoints of a run, not a model",
                "make a model of one with `augur export CHECKPOINT OUT`");
  }
}

}  // namespace augur
