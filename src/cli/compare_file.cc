#include "cli/compare_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "base/yaml.h"
#include "cli/study_run.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kKeys[] = {"base", "dir", "set", "arms", "grid", "seeds"};

std::string Place(const std::string& path, const YamlNode& node) {
  return fmt::format("{}:{}", path, node.line);
}

std::string Text(const std::string& path, const YamlNode& node, std::string_view what) {
  if (!node.is_scalar())
    throw Error(Place(path, node), fmt::format("{} must be one word", what), "write it so");
  return node.scalar;
}

std::vector<std::string> Texts(const std::string& path, const YamlNode& node) {
  std::vector<std::string> texts;
  if (node.is_null()) return texts;
  if (node.is_scalar()) return {node.scalar};
  if (!node.is_sequence()) {
    throw Error(Place(path, node), "expected a list of key=value", "write [mask=clip, train.lr=1e-6]");
  }
  for (const YamlNode& item : node.items) texts.push_back(Text(path, item, "an entry"));
  return texts;
}

// A name that is a directory, too.
void CheckName(const std::string& path, const YamlNode& node) {
  const std::string& name = node.scalar;
  const bool plain = std::ranges::all_of(name, [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
  if (name.empty() || name[0] == '.' || !plain) {
    throw Error(Place(path, node), fmt::format("{} cannot name an arm", Quoted(name)),
                "use letters, digits, '-', '_' and '.'");
  }
}

YamlNode Load(const std::string& path) {
  YamlNode root = ParseYaml(ReadFile(path), path);
  if (!root.is_map()) throw Error(path, "is no YAML mapping", "see augur compare --help");
  return root;
}

std::vector<FrontierAxis> ReadGrid(const std::string& path, const YamlNode& grid) {
  const auto fault = [&](const YamlNode& node) {
    return Error(Place(path, node), "the grid must map settings to lists of values",
                 "write lr_factor: [1, 4, 16]; see augur frontier --help");
  };
  if (grid.entries.empty()) throw fault(grid);
  std::vector<FrontierAxis> axes;
  for (const auto& [name, values] : grid.entries) {
    if (values.items.empty()) throw fault(values);
    if (std::ranges::find(axes, name.scalar, &FrontierAxis::name) != axes.end()) {
      throw Error(Place(path, name), fmt::format("the grid has '{}' twice", name.scalar),
                  "put its values into one list");
    }
    axes.push_back({Text(path, name, "a setting"), Texts(path, values)});
  }
  return axes;
}

int64_t ReadSeeds(const std::string& path, const YamlNode& node) {
  int64_t seeds = 0;
  const char* end = node.scalar.data() + node.scalar.size();
  const auto [stop, fault] = std::from_chars(node.scalar.data(), end, seeds);
  if (!node.is_scalar() || fault != std::errc() || stop != end || seeds < 1 || seeds > kMostSeeds) {
    throw Error(Place(path, node), fmt::format("seeds must be a whole number from 1 to {}", kMostSeeds),
                "write seeds: 4");
  }
  return seeds;
}

}  // namespace

CompareFile ReadCompareFile(const std::string& path) {
  const YamlNode root = Load(path);
  const std::string stem = fs::path(path).stem().string();
  const YamlNode* arms = root.Find("arms");
  if (arms == nullptr && root.Find("base") != nullptr) {
    throw Error(path, "names a base configuration and no arms",
                "add arms: {NAME: [key=value]}; see augur compare --help");
  }
  if (arms == nullptr) return {"", {{stem, path, {}, {}}}, {}, 0};
  for (const auto& entry : root.entries) {
    if (std::ranges::find(kKeys, entry.first.scalar) == std::end(kKeys)) {
      throw UnknownName(Place(path, entry.first), "key", entry.first.scalar, kKeys);
    }
  }
  const YamlNode* base = root.Find("base");
  if (base == nullptr)
    throw Error(path, "names no base configuration", "add base: FILE, one of augur train's");
  if (arms->entries.empty()) {
    throw Error(Place(path, *arms), "arms must map names to lists of key=value", "see augur compare --help");
  }
  const std::string config = (fs::path(path).parent_path() / FromHome(Text(path, *base, "base"))).string();
  const YamlNode *set = root.Find("set"), *dir = root.Find("dir");
  const std::vector<std::string> common = set != nullptr ? Texts(path, *set) : std::vector<std::string>();
  CompareFile file{dir != nullptr ? FromHome(Text(path, *dir, "dir")) : "runs/" + stem, {}, {}, 0};
  if (const YamlNode* grid = root.Find("grid")) file.grid = ReadGrid(path, *grid);
  if (const YamlNode* seeds = root.Find("seeds")) file.seeds = ReadSeeds(path, *seeds);
  for (const auto& [name, changes] : arms->entries) {
    CheckName(path, name);
    if (std::ranges::find(file.arms, name.scalar, &CompareArm::name) != file.arms.end()) {
      throw Error(Place(path, name), fmt::format("a second arm is named '{}'", name.scalar),
                  "give each its own name");
    }
    std::vector<std::string> overrides = common;
    const std::vector<std::string> own = Texts(path, changes);
    overrides.insert(overrides.end(), own.begin(), own.end());
    RefuseKeysOfStudy(overrides);
    file.arms.push_back({name.scalar, config, overrides, own});
  }
  return file;
}

bool Sets(std::span<const std::string> overrides, std::string_view key) {
  return std::ranges::any_of(
      overrides, [&](const std::string& text) { return text.starts_with(fmt::format("{}=", key)); });
}

void RefuseKeysOfArm(const CompareArm& arm, std::span<const std::string> changes) {
  const auto key_of = [](const std::string& text) { return text.substr(0, text.find('=')); };
  for (const std::string& change : changes) {
    for (const std::string& own : arm.own) {
      const std::string key = key_of(change), set = key_of(own);
      const bool whole_mask = key == "mask" || key == "mask.preset";  // sets every field of it
      if (key != set && !(whole_mask && set.starts_with("mask"))) continue;
      throw Error(
          change,
          fmt::format("the arm '{}' sets {} itself, and would not be what its name says", arm.name, set),
          "leave it out, or change the arm in its file");
    }
  }
}

void RefuseKeysOfStudy(std::span<const std::string> overrides) {
  for (const std::string& text : overrides) {
    if (text.starts_with("run.seed=")) {
      throw Error(text, "every run of a study has a seed of its own", "use --first-seed and --seeds");
    }
    if (text.starts_with("run.dir=")) {
      throw Error(text, "every run of a study has a directory of its own", "use --dir");
    }
  }
}

}  // namespace augur
