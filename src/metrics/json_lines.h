// Reading line files that a killed process may have left incomplete.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace augur {

// What a reader of a run directory has to say about it, for the page: "metrics.jsonl: 1 damaged line left
// out".
using Notes = std::vector<std::string>;

// Calls `take` with each line that parses; an Error from `take` counts as damage, too. Damaged lines are left
// out and counted in one note. Returns false where there is no such file.
bool ReadJsonLines(const std::filesystem::path& path,
                   const std::function<void(const Json& line, const std::string& where)>& take, Notes* notes);

// The lines of a file that could not be taken: counted, the first with its fault.
class DamagedLines {
 public:
  explicit DamagedLines(std::string file) : file_(std::move(file)) {}
  void Add(const Error& fault) {
    if (count_++ == 0) first_ = fault.what();
  }
  void Note(Notes* notes) const;

 private:
  std::string file_, first_;
  int64_t count_ = 0;
};

// A whole JSON file; null, with a note, where it is damaged, and without one where it is absent.
Json ReadJsonFile(const std::filesystem::path& path, Notes* notes);

// Keeps what one history says when a resumed run repeats steps: drops the elements at and after `step`.
template <typename T>
void ForgetFrom(int64_t step, std::vector<T>* history) {
  while (!history->empty() && history->back().step >= step) history->pop_back();
}

}  // namespace augur
