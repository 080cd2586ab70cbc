// Messages to the user.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace augur {

// To stderr. Where it cannot be written, nobody reads it, and that is all: unlike fmt::print it never throws.
template <typename... T>
void Tell(fmt::format_string<T...> format, T&&... values) {
  const std::string text = fmt::format(format, std::forward<T>(values)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace augur
