// The live page: the report's, growing while its runs train.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "report/live_run.h"
#include "report/server.h"

namespace augur {

// The run directories that `paths` name: each itself, or those it holds where it is none. Throws Error for
// one that is no directory or holds none.
std::vector<std::filesystem::path> RunsIn(std::span<const std::string> paths);

// What the page asks for:
//   /                            the page, with what is known now
//   /runs.json?since=3,1         {"runs": [run or null]}: each run whose version is not the one given, null
//   for the rest /tokens.json?run=0&step=12   a step's responses, null where there are none
class LiveRuns {
 public:
  explicit LiveRuns(std::span<const std::filesystem::path> runs);
  PageAnswer Answer(const std::string& target);

 private:
  PageAnswer Page();
  PageAnswer News(const std::string& query);
  PageAnswer Tokens(const std::string& query) const;

  std::vector<LiveRun> runs_;
};

}  // namespace augur
