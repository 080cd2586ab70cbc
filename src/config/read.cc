#include "config/read.h"

#include <utility>

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

constexpr std::string_view kPaths[] = {"run.dir",         "run.resume",    "model.path",
                                       "model.reference", "data.train",    "eval.files",
                                       "lora.adapter",    "reward.python", "reward.interpreter"};

void ExpandPaths(Settings* settings) {
  for (const std::string_view key : kPaths) {
    const auto found = settings->find(key);
    if (found == settings->end()) continue;
    for (std::string& item : found->second.items) item = FromHome(std::move(item));
  }
}

// GSPO's ratio is a mean over tokens and moves a hundredth of a token's: its authors clip it this close to 1.
void TakeLossDefaults(const Settings& settings, RlConfig* config) {
  AlgorithmSection& algorithm = config->algorithm;
  if (algorithm.loss != LossKind::kGspo) return;
  if (!settings.contains("algorithm.loss_clip_low")) algorithm.loss_clip_low = 3e-4;
  if (!settings.contains("algorithm.loss_clip_high")) algorithm.loss_clip_high = 4e-4;
}

void TakeLossDefaults(const Settings& /*settings*/, SftConfig* /*config*/) {}

template <typename Config>
Config Read(const std::filesystem::path& file, std::span<const std::string> overrides) {
  RefuseSettingAsFile(file);
  Config config;
  const FieldList fields = FieldsOf(config);
  Settings settings = ReadYamlSettings(ReadFile(file), file.string(), fields);
  AddOverrides(overrides, fields, &settings);
  ExpandPaths(&settings);
  Apply(settings, fields);
  TakeLossDefaults(settings, &config);
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
