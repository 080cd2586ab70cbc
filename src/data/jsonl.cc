#include "data/jsonl.h"

#include <algorithm>

#include "base/error.h"

namespace augur {

void ForEachJsonLine(std::string_view text, const std::string& file,
                     const std::function<void(const Json& row, size_t line)>& visit) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", file, number);
    const Json row = ParseJson(line, where);
    if (!row.is_object()) {
      throw Error(where, fmt::format("expected a JSON object, found {}", row.type_name()),
                  "write one object a line");
    }
    visit(row, number);
  }
}

}  // namespace augur
