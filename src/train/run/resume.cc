#include "train/run/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace augur {

std::optional<std::filesystem::path> FindCheckpoint(const RunSection& run, const CheckpointStore& store) {
  store.RemoveUnfinished();
  std::optional<std::filesystem::path> found;
  if (run.resume == "never") {
    store.RemoveAll();
  } else if (run.resume == "auto") {
    found =
        store.FindNewest([](const std::string& line) { fmt::print(stderr, "augur: warning: {}\n", line); });
  } else {
    found = run.resume;
    if (const auto why = WhyDamaged(*found)) {
      throw Error(found->string(), *why, "run.resume wants a checkpoint's directory (global_step_N)");
    }
  }
  return found;
}

void RefuseChanges(const RunSection& run, const std::filesystem::path& checkpoint,
                   const std::vector<std::string>& changed) {
  if (changed.empty() || run.resume_changed) return;
  throw Error(checkpoint.string(),
              fmt::format("was made with another configuration: {}", fmt::join(changed, ", ")),
              "set them back, go on regardless with run.resume_changed=true, or begin anew with "
              "run.resume=never");
}

}  // namespace augur
