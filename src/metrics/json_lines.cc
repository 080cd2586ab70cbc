#include "metrics/json_lines.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"

namespace augur {

bool ReadJsonLines(const std::filesystem::path& path,
                   const std::function<void(const Json& line, const std::string& where)>& take,
                   Notes* notes) {
  if (!std::filesystem::is_regular_file(path)) return false;
  const std::string name = path.filename().string();
  const MappedFile file(path);
  std::string_view rest = file.text();
  int64_t number = 0;
  DamagedLines damaged(name);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", name, number);
    try {
      take(ParseJson(line, where), where);
    } catch (const Error& error) {
      damaged.Add(error);
    }
  }
  damaged.Note(notes);
  return true;
}

void DamagedLines::Note(Notes* notes) const {
  if (count_ == 0) return;
  notes->push_back(fmt::format("{}: {} damaged {} left out (the first: {})", file_, count_,
                               count_ == 1 ? "line" : "lines", first_));
}

Json ReadJsonFile(const std::filesystem::path& path, Notes* notes) {
  if (!std::filesystem::is_regular_file(path)) return nullptr;
  const std::string name = path.filename().string();
  try {
    return ParseJson(ReadFile(path), name);
  } catch (const Error& error) {
    notes->push_back(fmt::format("damaged file left out: {}", error.what()));
    return nullptr;
  }
}

}  // namespace augur
