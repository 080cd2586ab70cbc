// A run directory that is watched while it grows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "metrics/point_record.h"
#include "report/series.h"

namespace augur {

// A file that lines are appended to, read from where the last reading ended. One that was replaced or cut is
// read anew.
class GrowingFile {
 public:
  explicit GrowingFile(std::filesystem::path path) : path_(std::move(path)) {}

  // The whole lines that are new; `restarted` says that what came before is no longer so.
  std::string ReadNew(bool* restarted);

 private:
  const std::filesystem::path path_;
  uint64_t inode_ = 0, offset_ = 0;
};

class LiveRun {
 public:
  // The more `companions` stand on the same page, the more the curves are thinned.
  LiveRun(std::filesystem::path path, size_t companions);

  // Reads what is new. A file that is damaged or gone is no error: the page says what there is.
  void Update();

  // Grows whenever something that Shown() tells has changed.
  uint64_t version() const { return version_; }

  // What ReadRun gives, with curves and points thinned and without tokens, and further
  //   "version", "state": {"kind": "running" | "finished" | "stopped" | "gone", "text": ...}, "token_steps":
  //   [...]
  Json Shown() const { return shown_; }

  // The responses of a step, or of the last before it that has some, as ReadViewerTokens gives them; null
  // where there are none.
  Json Tokens(int64_t step) const;

 private:
  void ReadMetrics();
  void ReadPoints();
  Json State() const;
  void ReadTokenSteps();

  const std::filesystem::path path_;
  const size_t steps_shown_;
  GrowingFile metrics_, points_;
  SeriesTable table_;
  std::vector<PointsRecord> records_;  // one in stride_ of the steps
  size_t stride_ = 1, seen_ = 0;       // lines of points_
  std::vector<int64_t> token_steps_;
  uintmax_t token_bytes_ = 0;
  uint64_t version_ = 0;
  Json shown_;
};

}  // namespace augur
