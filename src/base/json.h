// JSON reading with errors that name the file and position.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace augur {

using Json = nlohmann::json;

// Parses one JSON value. `where` (a file, or file:line) opens the message of the Error thrown on bad input.
// Nesting deeper than 256 levels is refused, so that hostile input cannot exhaust the stack.
Json ParseJson(std::string_view text, std::string_view where);

// The same, and an object that holds a key twice is refused; nlohmann would silently keep the last.
Json ParseJsonUniqueKeys(std::string_view text, std::string_view where);

// "a number", "an array", "null": what a value is, for messages.
std::string KindOf(const Json& value);

// object[key] of the wanted type; throws Error at `where` naming the key when it is absent or of another
// type.
const Json& RequireKey(const Json& object, std::string_view key, std::string_view where);
std::string RequireString(const Json& object, std::string_view key, std::string_view where);

}  // namespace augur
