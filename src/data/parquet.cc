#include "data/parquet.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/child_process.h"
#include "base/error.h"
#include "base/process_group.h"
#include "base/python.h"
#include "base/tell.h"

namespace augur {
namespace {

constexpr std::string_view kGetPyarrow =
    "pip install pyarrow, or convert the file to JSONL (pandas.read_parquet(F).to_json(G, "
    "orient=\"records\", "
    "lines=True))";

// The lines another process writes.
class ChildLines {
 public:
  ChildLines(const std::vector<std::string>& arguments, const std::string& where)
      : child_(StartChild(arguments, {}, where)) {}
  ~ChildLines() { EndChild(child_); }
  ChildLines(const ChildLines&) = delete;
  ChildLines& operator=(const ChildLines&) = delete;

  // False at the end.
  bool Next(std::string* line) {
    size_t end;
    while ((end = bytes_.find('\n', begin_)) == std::string::npos) {
      bytes_.erase(0, begin_);
      begin_ = 0;
      char more[1 << 16];
      const ssize_t got = ::read(child_.fd, more, sizeof more);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      bytes_.append(more, static_cast<size_t>(got));
    }
    *line = bytes_.substr(begin_, end - begin_);
    begin_ = end + 1;
    return true;
  }

 private:
  const ChildProcess child_;
  std::string bytes_;
  size_t begin_ = 0;
};

void TellLeftOut(const std::filesystem::path& path, const Json& columns) {
  if (ThisProcessGroup().rank > 0) return;  // the first tells it
  const auto names = columns.get<std::vector<std::string>>();
  Tell("augur: warning: {}: columns whose types have no counterpart in JSON are left out: {}\n",
       path.string(), fmt::join(names, ", "));
}

}  // namespace

void ForEachParquetRow(const std::filesystem::path& path,
                       const std::function<void(const Json& row, size_t number)>& visit) {
  ChildLines lines(PythonScript("_parquet.py", {path.string()}, path.string()), path.string());
  Json last;
  std::string line;
  size_t number = 0;
  while (last.is_null() && lines.Next(&line)) {
    if (line.starts_with('!')) {
      last = ParseJson(line.substr(1), path.string());
    } else {
      ++number;
      visit(ParseJson(line, fmt::format("{}:{}", path.string(), number)), number);
    }
    if (last.contains("left_out")) {
      TellLeftOut(path, last["left_out"]);
      last = nullptr;
    }
  }
  if (last.contains("end")) return;
  const std::string fault = last.contains("fault")
                                ? last["fault"].get<std::string>()
                                : "cannot be read as Parquet: the reading process ended early";
  const std::string where =
      last.contains("row") ? fmt::format("{}:{}", path.string(), last["row"].get<size_t>()) : path.string();
  throw Error(where, fault,
              last.contains("missing") ? kGetPyarrow
              : last.contains("row")   ? "write it again as UTF-8"
                                       : "fetch or write the file again");
}

}  // namespace augur
