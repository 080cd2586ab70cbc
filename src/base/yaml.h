// YAML as a tree that knows its lines, through libyaml.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace augur {

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  size_t line = 0;                   // from 1; 0 for a document without content
  std::string scalar = {};           // as it is written, without quotes
  std::vector<YamlNode> items = {};  // of a sequence
  std::vector<std::pair<YamlNode, YamlNode>> entries =
      {};  // of a map, in their order, keys as often as given

  bool is_null() const { return kind == Kind::kNull; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  bool is_sequence() const { return kind == Kind::kSequence; }
  bool is_map() const { return kind == Kind::kMap; }
  // The value of a map's first entry with this key, or null.
  const YamlNode* Find(std::string_view key) const;
};

// The one document of `text`; a null node where there is none. Throws Error at "file:line" for what is not
// valid YAML, for several documents, and for more than 100,000 nodes or 64 levels, aliases counted as what
// they stand for.
YamlNode ParseYaml(std::string_view text, const std::string& file);

}  // namespace augur
