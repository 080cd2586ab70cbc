#include "base/names.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace augur {

size_t IndexOfName(std::string_view where, std::string_view kind, std::string_view name,
                   std::span<const std::string_view> names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return i;
  }
  throw UnknownName(where, kind, name, names);
}

std::string OneOf(std::span<const std::string_view> names) {
  if (names.size() < 2) return fmt::format("{}", fmt::join(names, ""));
  return fmt::format("{} or {}", fmt::join(names.first(names.size() - 1), ", "), names.back());
}

}  // namespace augur
