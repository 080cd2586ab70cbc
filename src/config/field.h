// Configuration keys as their readers and writers see them; config.h declares them.
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

// Which numbers a key takes, and whether a resumed run may have another value, because it does not change
// what is computed: AtLeast(0).AtMost(1).MayChange().
struct Limits {
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  bool above = false;  // `least` itself is outside
  bool may_change = false;

  constexpr Limits AtLeast(double bound) const { return {bound, most, false, may_change}; }
  constexpr Limits Above(double bound) const { return {bound, most, true, may_change}; }
  constexpr Limits AtMost(double bound) const { return {least, bound, above, may_change}; }
  constexpr Limits MayChange() const { return {least, most, above, true}; }
};

class Field {
 public:
  Field(std::string key, FieldValue value, Limits limits, std::string_view description)
      : key_(std::move(key)), value_(std::move(value)), limits_(limits), description_(description) {}

  const std::string& key() const { return key_; }  // "train.lr"
  const std::string& description() const { return description_; }
  bool may_change_on_resume() const { return limits_.may_change; }
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
  Limits limits_;
  std::string description_;
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
  void Add(std::string_view name, T& value, Limits limits, std::string_view description) {
    if constexpr (std::is_enum_v<T>) {
      AddField(name,
               Choice{.names = kNamesOf<T>,
                      .get = [&value] { return static_cast<size_t>(value); },
                      .set = [&value](size_t index) { value = static_cast<T>(index); }},
               limits, description);
    } else {
      AddField(name, &value, limits, description);
    }
  }
  // Text that is one of `names`.
  void AddName(std::string_view name, std::string& value, std::span<const std::string_view> names,
               std::string_view description);
  void AddField(std::string_view name, FieldValue value, Limits limits, std::string_view description);

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
