#include "config/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "base/yaml.h"

namespace augur {
namespace {

// What people bring from other programs and what would bias a training rollout.
constexpr std::string_view kTruncations[] = {"rollout.top_k", "rollout.top_p", "rollout.min_p",
                                             "rollout.greedy"};

std::string Place(const std::string& file, const YamlNode& node) {
  return fmt::format("{}:{}", file, node.line);
}

// The key itself where only its section is missing ("steps"), else the nearest in spelling.
std::string NearestKey(std::string_view key, const FieldList& fields) {
  const std::vector<std::string_view> keys = fields.Keys();
  const std::string leaf = fmt::format(".{}", key.substr(key.rfind('.') + 1));
  const auto same_leaf = std::ranges::find_if(keys, [&](std::string_view k) { return k.ends_with(leaf); });
  if (same_leaf != keys.end() && key.find('.') == std::string_view::npos) return std::string(*same_leaf);
  return NearestName(key, keys);
}

// Sections that tell which command a file is for.
constexpr std::pair<std::string_view, std::string_view> kSectionsOfCommands[] = {
    {"grid", "frontier"},   {"base", "compare"},  {"arms", "compare"}, {"sft", "sft"},
    {"train", "train"},     {"rollout", "train"}, {"reward", "train"}, {"mask", "train"},
    {"algorithm", "train"}, {"eval", "train"},    {"audit", "train"}};

bool HasSection(const FieldList& fields, std::string_view name) {
  return std::ranges::any_of(fields.sections(), [&](const FieldSection& s) { return s.name == name; });
}

// What was meant by a key that is none here.
std::string KeyRemedy(std::string_view key, const FieldList& fields) {
  const std::string_view section = key.substr(0, key.find('.'));
  if (section.size() < key.size() && !HasSection(fields, section)) {
    for (const std::string_view own : {"train", "sft"}) {  // what the two commands name alike
      const std::string twin = fmt::format("{}{}", own, key.substr(section.size()));
      if (fields.Find(twin) != nullptr) return fmt::format("did you mean '{}'?", twin);
    }
    for (const auto& [name, command] : kSectionsOfCommands) {
      if (name == section)
        return fmt::format("the section '{}' is one of augur {}; leave it out", name, command);
    }
  }
  const std::string nearest = NearestKey(key, fields);
  return nearest.empty() ? "`augur config --markdown` lists the keys"
                         : fmt::format("did you mean '{}'?", nearest);
}

const Field& FindField(std::string_view key, const FieldList& fields, std::string_view where) {
  if (const Field* field = fields.Find(key)) return *field;
  if (std::ranges::find(kTruncations, key) != std::end(kTruncations)) {
    throw Error(
        where,
        fmt::format("{} would truncate the distribution that training rollouts are sampled from, and the "
                    "recorded probabilities would not be its own",
                    key),
        "remove it; evaluation has eval.top_k and eval.top_p");
  }
  throw Error(where, fmt::format("unknown key {}", Quoted(key)), KeyRemedy(key, fields));
}

// Before any key is looked at: a file of another command has keys of its own in the sections they share.
void RefuseFileOfOtherCommand(const YamlNode& document, const std::string& file, const FieldList& fields) {
  for (const auto& [section, command] : kSectionsOfCommands) {
    if (HasSection(fields, section)) continue;
    for (const auto& [key, content] : document.entries) {
      if (!key.is_scalar() || key.scalar != section) continue;
      throw Error(Place(file, key), fmt::format("'{}' belongs to a file of augur {}", section, command),
                  fmt::format("run augur {} with it", command));
    }
  }
}

const FieldSection& FindSection(const std::string& name, const FieldList& fields, const std::string& where) {
  std::vector<std::string_view> names;
  for (const FieldSection& section : fields.sections()) {
    if (section.name == name) return section;
    names.push_back(section.name);
  }
  if (name.find('.') != std::string::npos && fields.Find(name) != nullptr) {
    throw Error(where, fmt::format("'{}' is written in one word", name),
                fmt::format("write it as a key of the section '{}'", name.substr(0, name.find('.'))));
  }
  throw UnknownName(where, "section", Printable(name), names);
}

std::string ScalarText(const YamlNode& node, std::string_view key, const std::string& where) {
  if (node.is_null()) throw Error(where, fmt::format("{} has no value", key), "give one, or remove the line");
  if (!node.is_scalar()) throw Error(where, fmt::format("{} is not a single value", key), "give one value");
  return node.scalar;
}

Setting ReadSetting(const YamlNode& node, const Field& field, const std::string& where) {
  Setting setting{.where = where};
  if (!field.is_list() || !node.is_sequence()) {
    setting.items.push_back(ScalarText(node, field.key(), where));
    return setting;
  }
  setting.is_list = true;
  for (const YamlNode& item : node.items) {
    if (item.is_map() && (field.key() == "data.train" || field.key() == "eval.files")) {
      throw Error(where, fmt::format("{} names files, and a row is given", field.key()),
                  "write the rows to a JSONL file, one object a line, and name that");
    }
    setting.items.push_back(ScalarText(item, field.key(), where));
  }
  return setting;
}

void AddOnce(Settings* settings, const std::string& key, Setting setting) {
  const auto [found, added] = settings->emplace(key, setting);
  if (!added) {
    throw Error(setting.where, fmt::format("{} is given twice, first at {}", key, found->second.where),
                "remove one");
  }
}

bool HasPreset(const FieldSection& section) {
  return section.fields.front().key() == section.name + ".preset";
}

void ReadSection(const YamlNode& node, const FieldSection& section, const FieldList& fields,
                 const std::string& file, const std::string& where, Settings* settings) {
  if (node.is_scalar() && HasPreset(section)) {
    AddOnce(settings, section.name + ".preset", {.where = where, .items = {node.scalar}});
    return;
  }
  if (node.is_null()) return;  // a section whose lines are all commented out
  if (!node.is_map())
    throw Error(where, fmt::format("'{}' is a section", section.name), "write its keys beneath it");
  for (const auto& [name, value] : node.entries) {
    const std::string place = Place(file, name);
    const std::string key = fmt::format("{}.{}", section.name, ScalarText(name, "a key", place));
    AddOnce(settings, key, ReadSetting(value, FindField(key, fields, place), place));
  }
}

std::vector<std::string> ListItems(std::string_view text, const std::string& where) {
  const YamlNode list = [&] {
    try {
      return ParseYaml(text, "");
    } catch (const Error&) {
      throw Error(where, "is not a list", "write [a, b]");
    }
  }();
  std::vector<std::string> items;
  for (const YamlNode& item : list.items) items.push_back(ScalarText(item, "an item of the list", where));
  return items;
}

// What files build on in turn; more is a circle.
constexpr int kMostLayers = 8;
constexpr std::string_view kExtends = "extends";

Settings ReadLayered(std::string_view text, const std::string& file, const FieldList& fields, int layer);

// What the file that this one extends says.
Settings ReadExtended(const YamlNode& key, const YamlNode& value, const std::string& file,
                      const FieldList& fields, int layer) {
  const std::string where = Place(file, key);
  if (layer >= kMostLayers) throw Error(where, "files extend each other in a circle", "remove one 'extends'");
  const std::filesystem::path other =
      std::filesystem::path(file).parent_path() / FromHome(ScalarText(value, kExtends, where));
  if (!std::filesystem::is_regular_file(other)) {
    throw Error(where, fmt::format("there is no file {}", other.string()), "name one relative to this file");
  }
  return ReadLayered(ReadFile(other), other.string(), fields, layer + 1);
}

void AddExtended(Settings extended, const FieldList& fields, Settings* settings) {
  for (const FieldSection& section : fields.sections()) {
    if (!HasPreset(section) || !settings->contains(section.name + ".preset")) continue;
    for (const Field& field : section.fields) extended.erase(field.key());
  }
  settings->merge(extended);
}

Settings ReadLayered(std::string_view text, const std::string& file, const FieldList& fields, int layer) {
  Settings settings;
  Settings extended;
  std::vector<std::string> seen;
  const YamlNode document = ParseYaml(text, file);
  if (document.is_null()) return settings;
  if (!document.is_map()) throw Error(Place(file, document), "expected sections", "write 'train:'");
  RefuseFileOfOtherCommand(document, file, fields);
  for (const auto& [key, content] : document.entries) {
    const std::string where = Place(file, key);
    const std::string name = ScalarText(key, "a section's name", where);
    if (name == kExtends) {
      extended = ReadExtended(key, content, file, fields, layer);
      continue;
    }
    const FieldSection& section = FindSection(name, fields, where);
    if (std::ranges::find(seen, name) != seen.end()) {
      throw Error(where, fmt::format("the section '{}' is there twice", name), "put its keys together");
    }
    seen.push_back(name);
    ReadSection(content, section, fields, file, where, &settings);
  }
  AddExtended(std::move(extended), fields, &settings);
  return settings;
}

}  // namespace

Settings ReadYamlSettings(std::string_view text, const std::string& file, const FieldList& fields) {
  return ReadLayered(text, file, fields, 0);
}

namespace {

// Whether the text is mask=PRESET.
bool SetsPreset(std::string_view text, const FieldList& fields) {
  return std::ranges::any_of(fields.sections(), [&](const FieldSection& section) {
    return HasPreset(section) && text.starts_with(section.name + "=");
  });
}

void AddOverride(std::string_view text, const FieldList& fields, Settings* settings) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    throw Error(text, "is not of the form key=value", "write e.g. train.steps=100");
  }
  std::string key(text.substr(0, equals));
  const std::string where(text);
  if (key == "resume") key = "run.resume";
  for (const FieldSection& section : fields.sections()) {
    if (section.name != key) continue;
    if (!HasPreset(section)) {
      throw Error(where, fmt::format("'{}' is a section", key),
                  fmt::format("set one of its keys, e.g. {}", section.fields.front().key()));
    }
    // The whole section is replaced.
    for (const Field& field : section.fields) settings->erase(field.key());
    key += ".preset";
    break;
  }
  const Field& field = FindField(key, fields, where);
  const std::string_view value = text.substr(equals + 1);
  Setting setting{.where = where, .is_list = field.is_list() && (value.empty() || value.starts_with('['))};
  if (setting.is_list) {
    setting.items = ListItems(value, where);
  } else {
    setting.items.emplace_back(value);
  }
  settings->insert_or_assign(key, std::move(setting));
}

}  // namespace

void AddOverrides(std::span<const std::string> texts, const FieldList& fields, Settings* settings) {
  for (const bool presets : {true, false}) {
    for (const std::string& text : texts) {
      if (SetsPreset(text, fields) == presets) AddOverride(text, fields, settings);
    }
  }
}

void Apply(const Settings& settings, const FieldList& fields) {
  for (const FieldSection& section : fields.sections()) {
    for (const Field& field : section.fields) {
      const auto found = settings.find(field.key());
      if (found == settings.end()) continue;
      const Setting& setting = found->second;
      if (setting.is_list) {
        field.SetList(setting.items, setting.where);
      } else {
        field.Set(setting.items.front(), setting.where);
      }
    }
  }
}

}  // namespace augur
