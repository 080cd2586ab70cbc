#include "base/json.h"

#include <set>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace augur {
namespace {

constexpr int kDeepest = 256;

// nlohmann parses without recursion but destroys and visits values recursively: bound the depth beforehand.
void CheckDepth(std::string_view text, std::string_view where) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kDeepest) {
        throw Error(where, fmt::format("JSON nested deeper than {} levels at byte {}", kDeepest, i),
                    "this is not a file Augur reads");
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

Json Parse(std::string_view text, std::string_view where, const Json::parser_callback_t& callback) {
  CheckDepth(text, where);
  try {
    return Json::parse(text, callback);
  } catch (const Json::exception& e) {
    // nlohmann's text is "[json.exception.parse_error.101] parse error at line 1, column 5: ..."
    std::string_view what = e.what();
    if (const size_t end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
    throw Error(where, fmt::format("not valid JSON: {}", Printable(what)),
                "correct the file or fetch it again");
  }
}

}  // namespace

Json ParseJson(std::string_view text, std::string_view where) { return Parse(text, where, nullptr); }

Json ParseJsonUniqueKeys(std::string_view text, std::string_view where) {
  std::vector<std::set<std::string>> keys;  // of the objects open at this point
  return Parse(text, where, [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw Error(where,
                  fmt::format("the key {} occurs twice in one object", Quoted(parsed.get<std::string>())),
                  "the file is damaged; fetch it again");
    }
    return true;
  });
}

std::string KindOf(const Json& value) {
  const std::string_view name = value.type_name();
  if (value.is_null()) return "null";
  return fmt::format("{} {}", name.starts_with('a') || name.starts_with('o') ? "an" : "a", name);
}

const Json& RequireKey(const Json& object, std::string_view key, std::string_view where) {
  if (!object.is_object())
    throw Error(where, "expected a JSON object", fmt::format("with the key \"{}\"", key));
  const auto found = object.find(key);
  if (found == object.end()) throw Error(where, fmt::format("the key \"{}\" is missing", key), "add it");
  return *found;
}

std::string RequireString(const Json& object, std::string_view key, std::string_view where) {
  const Json& value = RequireKey(object, key, where);
  if (!value.is_string()) {
    throw Error(where, fmt::format("\"{}\" is {}, not a string", key, KindOf(value)), "write it as text");
  }
  return value.get<std::string>();
}

}  // namespace augur
