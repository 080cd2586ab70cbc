// Configuration keys. Each is declared once, in its section's Fields(), and from that declaration come its
// default, its parser, the help text, the documentation and the line in a saved file.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/names.h"
#include "mask/rule.h"

namespace augur {

struct Choice {
  std::span<const std::string_view> names;
  std::function<size_t()> get;
  std::function<void(size_t)> set;
};
// One field of a mask rule, parsed and written as mask/rule.h does.
struct MaskField {
  MaskRule* rule;
  const RuleField* field;
};
// A preset's name, which sets all fields of a rule. Read, never written: the fields say it all.
struct MaskPreset {
  MaskRule* rule;
};

using FieldValue = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*, Choice,
                                MaskField, MaskPreset>;

class Field {
 public:
  Field(std::string key, FieldValue value, std::string_view description)
      : key_(std::move(key)), value_(std::move(value)), description_(description) {}

  // Limits of a number, set where the field is declared.
  Field& AtLeast(double least);
  Field& Above(double bound);
  Field& AtMost(double most);
  // A resumed run may have another value: it does not change what is computed.
  Field& MayChangeOnResume();

  const std::string& key() const { return key_; }  // "train.lr"
  const std::string& description() const { return description_; }
  bool may_change_on_resume() const { return may_change_; }
  bool is_list() const { return std::holds_alternative<std::vector<std::string>*>(value_); }
  bool is_saved() const { return !std::holds_alternative<MaskPreset>(value_); }
  // "number, above 0", "constant | cosine", ...
  std::string Kind() const;

  // Parses `text` into the variable. Throws Error at `where` for a wrong type, an unknown name or a number
  // out of range.
  void Set(std::string_view text, std::string_view where) const;
  void SetList(std::vector<std::string> items, std::string_view where) const;
  // The value as YAML; what Set reads back.
  std::string Yaml() const;

 private:
  void CheckRange(double value, std::string_view where) const;

  std::string key_;
  FieldValue value_;
  std::string description_;
  double least_ = -std::numeric_limits<double>::infinity(), most_ = std::numeric_limits<double>::infinity();
  bool above_ = false;  // least_ itself is outside
  bool may_change_ = false;
};

struct FieldSection {
  std::string name;
  std::string description;
  std::vector<Field> fields;
};

// Collects the fields of a configuration, section by section. The variables must outlive it.
class FieldList {
 public:
  void Section(std::string_view name, std::string_view description);

  template <typename T>
  Field& Add(std::string_view name, T& value, std::string_view description) {
    if constexpr (std::is_enum_v<T>) {
      return AddField(name,
                      Choice{.names = kNamesOf<T>,
                             .get = [&value] { return static_cast<size_t>(value); },
                             .set = [&value](size_t index) { value = static_cast<T>(index); }},
                      description);
    } else {
      return AddField(name, &value, description);
    }
  }
  // Text that is one of `names`.
  Field& AddName(std::string_view name, std::string& value, std::span<const std::string_view> names,
                 std::string_view description);
  Field& AddField(std::string_view name, FieldValue value, std::string_view description);

  const std::vector<FieldSection>& sections() const { return sections_; }
  // Null where there is no such key.
  const Field* Find(std::string_view key) const;
  // Every key, in order.
  std::vector<std::string_view> Keys() const;

 private:
  std::vector<FieldSection> sections_;
};

// Text as a YAML scalar that reads back as the same text.
std::string YamlString(std::string_view text);

}  // namespace augur
