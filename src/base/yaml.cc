#include "base/yaml.h"

#include <fmt/format.h>
#include <yaml.h>

#include <algorithm>

#include "base/error.h"

namespace augur {
namespace {

constexpr size_t kMostNodes = 100'000, kMostLevels = 64;

std::string YamlPlace(const std::string& file, size_t line) { return fmt::format("{}:{}", file, line); }

// The parser's time grows with the square of the brackets that are open at once.
void CheckBrackets(std::string_view text, const std::string& file) {
  constexpr int64_t kMostOpen = 1000;
  int64_t open = 0;
  for (const char c : text) {
    open += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (open > kMostOpen) throw Error(file, "opens more than a thousand brackets at once", "close them");
  }
}

class YamlParser {
 public:
  YamlParser(std::string_view text, const std::string& file) : file_(file) {
    CheckBrackets(text, file);
    yaml_parser_initialize(&parser_);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  ~YamlParser() { yaml_parser_delete(&parser_); }
  YamlParser(const YamlParser&) = delete;
  YamlParser& operator=(const YamlParser&) = delete;

  YamlNode Parse() {
    YamlNode root;
    if (!LoadDocument(&root)) return root;
    YamlNode second;
    if (LoadDocument(&second)) throw Error(file_, "holds several YAML documents", "keep one");
    return root;
  }

 private:
  // False at the end of the input.
  bool LoadDocument(YamlNode* root) {
    yaml_document_t document;
    if (yaml_parser_load(&parser_, &document) == 0) {
      const std::string place =
          parser_.error == YAML_READER_ERROR ? file_ : YamlPlace(file_, parser_.problem_mark.line + 1);
      throw Error(place, fmt::format("is not valid YAML: {}", parser_.problem), "correct it");
    }
    struct Guard {
      yaml_document_t* document;
      ~Guard() { yaml_document_delete(document); }
    } const guard{&document};
    yaml_node_t* node = yaml_document_get_root_node(&document);
    if (node == nullptr) return false;
    *root = Convert(&document, *node, 1);
    return true;
  }

  YamlNode Convert(yaml_document_t* document, const yaml_node_t& node, size_t level) {
    YamlNode out{.line = node.start_mark.line + 1};
    if (++nodes_ > kMostNodes || level > kMostLevels) {
      throw Error(YamlPlace(file_, out.line), "holds too much for a configuration", "make it smaller");
    }
    const auto child = [&](int id) {
      return Convert(document, *yaml_document_get_node(document, id), level + 1);
    };
    if (node.type == YAML_SEQUENCE_NODE) {
      out.kind = YamlNode::Kind::kSequence;
      for (auto* id = node.data.sequence.items.start; id != node.data.sequence.items.top; ++id) {
        out.items.push_back(child(*id));
      }
    } else if (node.type == YAML_MAPPING_NODE) {
      out.kind = YamlNode::Kind::kMap;
      for (auto* pair = node.data.mapping.pairs.start; pair != node.data.mapping.pairs.top; ++pair) {
        YamlNode key = child(pair->key);
        out.entries.emplace_back(std::move(key), child(pair->value));
      }
    } else {
      out.scalar.assign(reinterpret_cast<const char*>(node.data.scalar.value), node.data.scalar.length);
      const bool plain = node.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
      const bool null = plain && (out.scalar.empty() || out.scalar == "~" || out.scalar == "null" ||
                                  out.scalar == "Null" || out.scalar == "NULL");
      out.kind = null ? YamlNode::Kind::kNull : YamlNode::Kind::kScalar;
    }
    return out;
  }

  const std::string& file_;
  yaml_parser_t parser_;
  size_t nodes_ = 0;
};

}  // namespace

const YamlNode* YamlNode::Find(std::string_view key) const {
  const auto found =
      std::ranges::find_if(entries, [&](const auto& entry) { return entry.first.scalar == key; });
  return found == entries.end() ? nullptr : &found->second;
}

YamlNode ParseYaml(std::string_view text, const std::string& file) { return YamlParser(text, file).Parse(); }

}  // namespace augur
