#include "base/json.h"

#include "base/error.h"

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

}  // namespace

Json ParseJson(std::string_view text, std::string_view where) {
  CheckDepth(text, where);
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    // nlohmann's text is "[json.exception.parse_error.101] parse error at line 1, column 5: ..."
    std::string_view what = e.what();
    if (const size_t end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
    throw Error(where, fmt::format("not valid JSON: {}", what), "correct the file or fetch it again");
  }
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
    throw Error(where, fmt::format("\"{}\" is a {}, not a string", key, value.type_name()),
                "write it as text");
  }
  return value.get<std::string>();
}

}  // namespace augur
