#include "report/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "report/report.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

bool HoldsRun(const fs::path& path) {
  return std::ranges::any_of(
      std::initializer_list<const char*>{"config.yaml", "metrics.jsonl", "compare.json", "analysis.json",
                                         "frontier.json"},
      [&](const char* name) { return fs::exists(path / name); });
}

// A number in "run=0&step=12" or "3,1"; nothing where it is none.
std::optional<int64_t> WholeNumber(std::string_view text) {
  int64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  return fault == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::optional<int64_t> Parameter(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view part = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (part.starts_with(name) && part.substr(name.size()).starts_with('='))
      return WholeNumber(part.substr(name.size() + 1));
  }
  return std::nullopt;
}

PageAnswer JsonAnswer(const Json& json) {
  return {200, "application/json", json.dump(-1, ' ', true, Json::error_handler_t::replace)};
}

}  // namespace

std::vector<fs::path> RunsIn(std::span<const std::string> paths) {
  std::vector<fs::path> runs;
  for (const fs::path path : paths) {
    if (!fs::is_directory(path)) {
      throw Error(path.string(), fs::exists(path) ? "is no directory" : "does not exist",
                  "name a run directory");
    }
    if (HoldsRun(path)) {
      runs.push_back(path);
      continue;
    }
    std::vector<fs::path> inside;
    for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
      if (entry.is_directory() && HoldsRun(entry.path())) inside.push_back(entry.path());
    }
    if (inside.empty())
      throw Error(path.string(), "is no run directory and holds none", "name one that augur train made");
    std::ranges::sort(inside);
    runs.insert(runs.end(), inside.begin(), inside.end());
  }
  return runs;
}

LiveRuns::LiveRuns(std::span<const fs::path> runs) {
  for (const fs::path& run : runs) runs_.emplace_back(run, runs.size() - 1);
}

PageAnswer LiveRuns::Answer(const std::string& target) {
  const size_t mark = std::min(target.find('?'), target.size());
  const std::string path = target.substr(0, mark), query = target.substr(std::min(mark + 1, target.size()));
  if (path == "/") return Page();
  if (path == "/runs.json") return News(query);
  if (path == "/tokens.json") return Tokens(query);
  return {404, "text/plain; charset=utf-8", "There is nothing here; the page is at /\n"};
}

PageAnswer LiveRuns::Page() {
  std::vector<Json> runs;
  for (LiveRun& run : runs_) {
    run.Update();
    runs.push_back(run.Shown());
  }
  return {.body = LivePage(std::move(runs))};
}

PageAnswer LiveRuns::News(const std::string& query) {
  std::string_view since = std::string_view(query).substr(query.starts_with("since=") ? 6 : query.size());
  Json runs = Json::array();
  for (LiveRun& run : runs_) {
    const size_t end = std::min(since.find(','), since.size());
    const std::optional<int64_t> known = WholeNumber(since.substr(0, end));
    since.remove_prefix(std::min(end + 1, since.size()));
    run.Update();
    const bool same = known && static_cast<uint64_t>(*known) == run.version();
    runs.push_back(same ? Json() : run.Shown());
  }
  return JsonAnswer({{"runs", std::move(runs)}});
}

PageAnswer LiveRuns::Tokens(const std::string& query) const {
  const std::optional<int64_t> run = Parameter(query, "run"), step = Parameter(query, "step");
  if (!run || !step || *run < 0 || *run >= static_cast<int64_t>(runs_.size())) {
    return {400, "text/plain; charset=utf-8", "Ask for /tokens.json?run=0&step=1\n"};
  }
  return JsonAnswer(runs_[static_cast<size_t>(*run)].Tokens(*step));
}

}  // namespace augur
