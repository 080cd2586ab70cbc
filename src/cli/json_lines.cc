#include "cli/json_lines.h"

#include <fmt/format.h>

#include <string>

#include "base/error.h"

namespace augur {

void ConvertJsonLines(std::istream& in, std::ostream& out, const std::function<Json(const Json&)>& convert) {
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("line {}", number);
    const Json object = ParseJson(line, where);
    if (!object.is_object()) throw Error(where, "expected a JSON object", "write one object a line");
    out << AtPlace(where, [&] { return convert(object).dump(-1, ' ', true); }) << '\n';
    if (in.rdbuf()->in_avail() <= 0) out.flush();
  }
  out.flush();
}

}  // namespace augur
