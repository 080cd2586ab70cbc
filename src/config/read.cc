#include "config/read.h"

#include "base/error.h"
#include "base/file.h"

namespace augur {
namespace {

// Settings alone are not a run.
void RefuseSettingAsFile(const std::filesystem::path& file) {
  if (file.string().find('=') == std::string::npos || std::filesystem::exists(file)) return;
  throw Error(file.string(), "is a setting where the configuration file belongs",
              "name the file first, for example recipes/quickstart.yaml");
}

template <typename Config>
Config Read(const std::filesystem::path& file, std::span<const std::string> overrides) {
  RefuseSettingAsFile(file);
  Config config;
  const FieldList fields = FieldsOf(config);
  Settings settings = ReadYamlSettings(ReadFile(file), file.string(), fields);
  AddOverrides(overrides, fields, &settings);
  Apply(settings, fields);
  if (config.run.dir.empty()) config.run.dir = (std::filesystem::path("runs") / file.stem()).string();
  CheckConfig(config, settings, file.string());
  return config;
}

}  // namespace

RlConfig ReadRlConfig(const std::filesystem::path& file, std::span<const std::string> overrides) {
  return Read<RlConfig>(file, overrides);
}

SftConfig ReadSftConfig(const std::filesystem::path& file, std::span<const std::string> overrides) {
  return Read<SftConfig>(file, overrides);
}

}  // namespace augur
