#include "report/live_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "metrics/metrics_file.h"
#include "metrics/progress.h"
#include "metrics/token_record.h"
#include "report/run_data.h"
#include "report/viewer_tokens.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLiveSteps = 1000;      // of all runs' curves together; as many more with an evaluation
constexpr size_t kLivePoints = 2000;     // of the scatter plots
constexpr size_t kPointSteps = 512;      // that points are taken from, half of it once they are thinned
constexpr size_t kTokenSteps = 400;      // that are offered in the viewer
constexpr size_t kTokenBytes = 2 << 20;  // of one step's responses

// Parses the lines that `wanted` picks by their number and text. A damaged line is left out.
template <typename Wanted, typename Take>
void ForSomeLines(std::string_view text, const Wanted& wanted, const Take& take) {
  for (size_t index = 0; !text.empty(); ++index) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (!wanted(index, line)) continue;
    try {
      take(ParseJson(line, ""));
    } catch (const Error&) {
    }
  }
}

size_t Lines(std::string_view text) { return static_cast<size_t>(std::ranges::count(text, '\n')); }

// Whether a process holds the run (base/run_lock.h), found without touching the lock where the system lists
// them.
bool IsHeld(const fs::path& run) {
  struct stat status{};
  if (::stat((run / ".lock").c_str(), &status) != 0) return false;
  std::ifstream locks("/proc/locks");
  if (locks) {
    const std::string inode = fmt::format(":{} ", status.st_ino);
    for (std::string line; std::getline(locks, line);) {
      if (line.find("FLOCK") != std::string::npos && line.find(inode) != std::string::npos) return true;
    }
    return false;
  }
  const int fd = ::open((run / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  const bool held = fd >= 0 && ::flock(fd, LOCK_SH | LOCK_NB) != 0;
  if (fd >= 0) ::close(fd);
  return held;
}

}  // namespace

std::string GrowingFile::ReadNew(bool* restarted) {
  *restarted = false;
  struct stat status{};
  const bool there = ::stat(path_.c_str(), &status) == 0;
  const auto size = there ? static_cast<uint64_t>(status.st_size) : 0;
  if (offset_ > 0 && (!there || status.st_ino != inode_ || size < offset_)) {
    offset_ = 0;
    *restarted = true;
  }
  if (!there || size == offset_) return "";
  inode_ = status.st_ino;
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset_));
  std::string text(size - offset_, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  text.resize(text.rfind('\n') + 1);  // none: nothing is whole yet
  offset_ += text.size();
  return text;
}

LiveRun::LiveRun(fs::path path, size_t companions)
    : path_(std::move(path)),
      steps_shown_(std::max<size_t>(kLiveSteps / (1 + companions), 100)),
      metrics_(path_ / kMetricsFile),
      points_(path_ / kPointsFile) {}

void LiveRun::ReadMetrics() {
  bool restarted = false;
  const std::string text = metrics_.ReadNew(&restarted);
  if (restarted) table_ = {};
  if (text.empty()) return;
  const size_t lines = Lines(text), stride = std::bit_ceil(1 + lines / (2 * kLiveSteps));
  ForSomeLines(
      text,
      [&](size_t index, std::string_view line) {
        return index % stride == 0 || index + 1 == lines || line.find("\"val-") != std::string_view::npos;
      },
      [&](const Json& line) { table_.Add(line, ""); });
  table_.Thin(steps_shown_);
}

void LiveRun::ReadPoints() {
  bool restarted = false;
  const std::string text = points_.ReadNew(&restarted);
  if (restarted) {
    records_.clear();
    stride_ = 1;
    seen_ = 0;
  }
  if (seen_ == 0) stride_ = std::bit_ceil(1 + Lines(text) / kPointSteps);
  ForSomeLines(
      text, [&](size_t, std::string_view) { return seen_++ % stride_ == 0; },
      [&](const Json& line) {
        PointsRecord record = PointsFromJson(line, "");
        ForgetFrom(record.step, &records_);
        records_.push_back(std::move(record));
      });
  while (records_.size() > kPointSteps) {
    size_t kept = 0;
    for (size_t i = 0; i < records_.size(); i += 2) std::swap(records_[kept++], records_[i]);
    records_.resize(kept);
    stride_ *= 2;
  }
}

void LiveRun::Update() {
  Json now;
  try {
    RunLimits limits;
    limits.only_facts = true;
    now = ReadRun(path_, limits);
    ReadMetrics();
    ReadPoints();
    ReadTokenSteps();
  } catch (const Error&) {  // the directory went away
    now = shown_.is_null() ? Json{{"name", path_.filename().string()},
                                  {"path", path_.string()},
                                  {"config", nullptr},
                                  {"summary", nullptr},
                                  {"analysis", nullptr},
                                  {"compare", nullptr},
                                  {"frontier", nullptr},
                                  {"notes", Json::array()}}
                           : shown_;
    now.erase("version");
  }
  now["metrics"] = table_.empty() ? Json() : table_.Shown();
  now["points"] = ShownPoints(records_, kLivePoints, stride_);
  now["tokens"] = nullptr;
  now["token_steps"] = token_steps_.empty() ? Json() : Json(token_steps_);
  now["state"] = State();
  Json before = shown_;
  if (before.is_object()) before.erase("version");
  if (now == before) return;
  now["version"] = ++version_;
  shown_ = std::move(now);
}

Json LiveRun::State() const {
  if (!fs::is_directory(path_)) return {{"kind", "gone"}, {"text", "its directory was moved or deleted"}};
  const int64_t step = table_.empty() ? 0 : table_.last_step();
  int64_t steps = 0;
  Notes notes;
  const Json facts = ReadRunConfig(path_, &notes);
  if (facts.is_object())
    steps = std::atoll(facts.value("train.steps", facts.value("sft.steps", "0")).c_str());
  const std::string where =
      steps > 0 ? fmt::format("step {} of {}", step, steps) : fmt::format("step {}", step);
  if (!IsHeld(path_)) {
    if (fs::exists(path_ / "summary.json") && step >= steps) return {{"kind", "finished"}, {"text", where}};
    return {{"kind", "stopped"},
            {"text",
             where + ": no process of this machine trains it; the same command goes on from its checkpoint"}};
  }
  const std::vector<double> seconds = table_.Newest("timing_s/step", 20);
  if (seconds.empty() || step >= steps) return {{"kind", "running"}, {"text", where}};
  const double mean =
      std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
  return {
      {"kind", "running"},
      {"text", fmt::format("{}, about {} left", where, ClockText(mean * static_cast<double>(steps - step)))}};
}

void LiveRun::ReadTokenSteps() {
  std::error_code absent;
  const uintmax_t size = fs::file_size(path_ / kTokenRecordsFile, absent);
  if (absent || size == token_bytes_) return;
  token_bytes_ = size;
  token_steps_ = RecordedSteps(path_, kTokenSteps);
}

Json LiveRun::Tokens(int64_t step) const { return ReadTokensOfStep(path_, step, kTokenBytes); }

}  // namespace augur
