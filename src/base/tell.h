// Messages to the user.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "base/utf8.h"

namespace augur {

// To stderr, with control characters made visible. Where it cannot be written, nobody reads it, and that is
// all: unlike fmt::print it never throws.
template <typename... T>
void Tell(fmt::format_string<T...> format, T&&... values) {
  const std::string text = Visible(fmt::format(format, std::forward<T>(values)...));
  std::fwrite(text.data(), 1, text.size(), stderr);
}

// Text for stdout: as it is for a file or a pipe, with control characters made visible for a terminal.
inline std::string ForStdout(std::string_view text) {
  return ::isatty(STDOUT_FILENO) != 0 ? Visible(text) : std::string(text);
}

}  // namespace augur
