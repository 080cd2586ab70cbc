// Files of one JSON object a line.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace augur {

// Calls `visit` with each line's object, the line's number, from 1, and whether an object in it holds a key
// twice, of which the last counts. Blank lines and a byte order mark are skipped. Throws Error at "file:line"
// for a line that is not a JSON object.
void ForEachJsonLine(std::string_view text, const std::string& file,
                     const std::function<void(const Json& row, size_t line, bool repeats_key)>& visit);

}  // namespace augur
