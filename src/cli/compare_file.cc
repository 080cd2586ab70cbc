#include "cli/compare_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kKeys[] = {"base", "dir", "set", "arms"};

std::string Place(const std::string& path, const YAML::Node& node) {
  return fmt::format("{}:{}", path, node.Mark().line + 1);
}

std::string Text(const std::string& path, const YAML::Node& node, std::string_view what) {
  if (!node.IsScalar())
    throw Error(Place(path, node), fmt::format("{} must be one word", what), "write it so");
  return node.Scalar();
}

std::vector<std::string> Texts(const std::string& path, const YAML::Node& node) {
  std::vector<std::string> texts;
  if (node.IsNull()) return texts;
  if (node.IsScalar()) return {node.Scalar()};
  if (!node.IsSequence()) {
    throw Error(Place(path, node), "expected a list of key=value", "write [mask=clip, train.lr=1e-6]");
  }
  for (const YAML::Node& item : node) texts.push_back(Text(path, item, "an entry"));
  return texts;
}

// A name that is a directory, too.
void CheckName(const std::string& path, const YAML::Node& node) {
  const std::string& name = node.Scalar();
  const bool plain = std::ranges::all_of(name, [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
  if (name.empty() || name[0] == '.' || !plain) {
    throw Error(Place(path, node), fmt::format("{} cannot name an arm", Quoted(name)),
                "use letters, digits, '-', '_' and '.'");
  }
}

YAML::Node Load(const std::string& path) {
  try {
    YAML::Node root = YAML::Load(ReadFile(path));
    if (!root.IsMap()) throw Error(path, "is no YAML mapping", "see augur compare --help");
    return root;
  } catch (const YAML::Exception& error) {
    throw Error(fmt::format("{}:{}", path, error.mark.line + 1), "not valid YAML: " + Printable(error.msg),
                "correct the file");
  }
}

}  // namespace

CompareFile ReadCompareFile(const std::string& path) {
  const YAML::Node root = Load(path);
  const std::string stem = fs::path(path).stem().string();
  if (!root["arms"]) return {"", {{stem, path, {}}}};
  for (const auto& entry : root) {
    if (std::ranges::find(kKeys, entry.first.Scalar()) == std::end(kKeys)) {
      throw UnknownName(Place(path, entry.first), "key", entry.first.Scalar(), kKeys);
    }
  }
  if (!root["base"]) throw Error(path, "names no base configuration", "add base: FILE, one of augur train's");
  if (!root["arms"].IsMap() || root["arms"].size() == 0) {
    throw Error(Place(path, root["arms"]), "arms must map names to lists of key=value",
                "see augur compare --help");
  }
  const std::string base = (fs::path(path).parent_path() / Text(path, root["base"], "base")).string();
  const std::vector<std::string> common = root["set"] ? Texts(path, root["set"]) : std::vector<std::string>();
  CompareFile file{root["dir"] ? Text(path, root["dir"], "dir") : "runs/" + stem, {}};
  for (const auto& arm : root["arms"]) {
    CheckName(path, arm.first);
    std::vector<std::string> overrides = common;
    const std::vector<std::string> own = Texts(path, arm.second);
    overrides.insert(overrides.end(), own.begin(), own.end());
    file.arms.push_back({arm.first.Scalar(), base, overrides});
  }
  return file;
}

}  // namespace augur
