#include "data/jsonl.h"

#include <algorithm>

#include "base/error.h"

namespace augur {
namespace {

// Keys of all objects as they are written: each has one colon behind it.
size_t KeysWritten(std::string_view json) {
  size_t count = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (in_string && json[i] == '\\') {
      ++i;
    } else if (json[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && json[i] == ':') {
      ++count;
    }
  }
  return count;
}

size_t KeysKept(const Json& value) {
  size_t count = value.is_object() ? value.size() : 0;
  if (!value.is_structured()) return count;
  for (const Json& part : value) count += KeysKept(part);
  return count;
}

}  // namespace

void ForEachJsonLine(std::string_view text, const std::string& file,
                     const std::function<void(const Json& row, size_t line, bool repeats_key)>& visit) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", file, number);
    const Json row = ParseJson(line, where);
    if (!row.is_object()) {
      throw Error(where, fmt::format("expected a JSON object, found {}", KindOf(row)),
                  "write one object a line");
    }
    visit(row, number, KeysWritten(line) > KeysKept(row));
  }
}

}  // namespace augur
