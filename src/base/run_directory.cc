#include "base/run_directory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

// What lies in the directories of studies, and what they are.
constexpr std::pair<const char*, const char*> kStudies[] = {
    {"analysis.json", "an analysis"}, {"compare.json", "a comparison"}, {"frontier.json", "a frontier"}};

bool HasCheckpoint(const fs::path& directory) {
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, none)) {
    if (IsCheckpoint(entry.path())) return true;
  }
  return false;
}

// As it can be typed.
std::string ShellWord(const std::string& text) {
  const bool plain = std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c >= 0x80 ||
           std::string_view("/._-+:@%=,").find(c) != std::string_view::npos;
  });
  if (plain && !text.empty()) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

bool IsCheckpoint(const fs::path& directory) {
  return fs::exists(directory / kCheckpointManifest) && fs::exists(directory / kCheckpointState);
}

bool IsRun(const fs::path& directory) {
  return fs::exists(directory / kRunConfig) &&
         (fs::exists(directory / "metrics.jsonl") || fs::is_directory(directory / kCheckpoints) ||
          fs::is_directory(directory / "tensorboard") || fs::exists(directory / ".lock"));
}

void ThrowFilesOfOthers(const fs::path& directory, const std::vector<std::string>& found) {
  for (const auto& [mark, study] : kStudies) {
    if (!fs::exists(directory / mark)) continue;
    throw Error(directory.string(),
                fmt::format("holds {}, of which this would replace {}", study, fmt::join(found, ", ")),
                "take another directory");
  }
  throw Error(directory.string(),
              fmt::format("holds files that no run of Augur made and this one would replace: {}",
                          fmt::join(found, ", ")),
              "set run.dir to another directory, or move them elsewhere");
}

void RefuseToReplace(const fs::path& directory, const char* mark, std::initializer_list<const char*> names) {
  if (fs::exists(directory / mark)) return;
  std::vector<std::string> found;
  for (const char* name : names) {
    std::error_code none;
    if (fs::exists(directory / name, none) && !fs::is_empty(directory / name, none)) found.emplace_back(name);
  }
  if (!found.empty()) ThrowFilesOfOthers(directory, found);
}

void RefuseRunDirectory(const fs::path& directory) {
  const std::string name = directory.string();
  const std::string remedy = fmt::format("make a model of it with `augur export {} OUT`", ShellWord(name));
  if (IsCheckpoint(directory)) throw Error(name, "is a checkpoint, not a model", remedy);
  if (IsRun(directory)) {
    const fs::path model = directory / kRunModel;
    throw Error(
        name, "is the directory of a run, not a model",
        fs::exists(model / "config.json")
            ? fmt::format("name {}, or make a model of the newest checkpoint with `augur export {} OUT`",
                          model.string(), ShellWord(name))
            : fmt::format("make a model of its newest checkpoint with `augur export {} OUT`",
                          ShellWord(name)));
  }
  if (HasCheckpoint(directory)) {
    throw Error(name, "holds the checkpoints of a run, not a model",
                "make a model of one with `augur export CHECKPOINT OUT`");
  }
}

}  // namespace augur
