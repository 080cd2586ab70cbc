// What a configuration file and the command line say, before it is given to fields.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/field.h"

namespace augur {

struct Setting {
  std::string where;  // "file:line", or "key=value" from the command line
  bool is_list = false;
  std::vector<std::string> items = {};  // one, unless it is a list
};

// By key, later settings in place of earlier ones.
using Settings = std::map<std::string, Setting, std::less<>>;

// Reads YAML of the form "section:\n  key: value". Keys must be in `fields`, each given once. `extends:
// FILE`, relative to this one, takes over what that file says and this one does not; a mask's preset replaces
// the whole section. Throws Error at "file:line" for anything else, with the nearest valid name.
Settings ReadYamlSettings(std::string_view text, const std::string& file, const FieldList& fields);

// Adds "a.b=value" of the command line, each. The value is taken as it stands; [a, b] where the key is a
// list. mask=PRESET replaces what the file says of the section, and the other keys given change it, before or
// after.
void AddOverrides(std::span<const std::string> texts, const FieldList& fields, Settings* settings);

// Gives every setting to its field, in the order of the fields.
void Apply(const Settings& settings, const FieldList& fields);

}  // namespace augur
