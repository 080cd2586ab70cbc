// Commands that turn each JSON line of standard input into one of standard output.
#pragma once

#include <functional>
#include <istream>
#include <ostream>
#include <string_view>

#include "base/json.h"

namespace augur {

// Calls `convert` with the object on each line and writes what it returns as one line, flushed as soon as
// the input runs dry so that a program may converse through pipes. Blank lines are skipped. An Error thrown
// by `convert` is thrown on with the line's number before its message.
void ConvertJsonLines(std::istream& in, std::ostream& out, const std::function<Json(const Json&)>& convert);

}  // namespace augur
