// Enumerations by name. The names stand next to each enumeration, in the order of its values:
//
//   enum class Tail { kLong, kShort };
//   template <>
//   inline constexpr std::array<std::string_view, 2> kNamesOf<Tail>{"long", "short"};
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace augur {

template <typename E>
inline constexpr int kNamesOf = 0;

template <typename E>
std::string_view NameOf(E value) {
  return kNamesOf<E>[static_cast<size_t>(value)];
}

// The place of `name` among `names`. Throws UnknownName(where, kind, ...) where it is none of them.
size_t IndexOfName(std::string_view where, std::string_view kind, std::string_view name,
                   std::span<const std::string_view> names);

// "a, b or c", for help texts.
std::string OneOf(std::span<const std::string_view> names);

template <typename E>
E ParseName(std::string_view where, std::string_view kind, std::string_view name) {
  return static_cast<E>(IndexOfName(where, kind, name, kNamesOf<E>));
}

}  // namespace augur
