#include "config/pin.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <optional>

#include "base/error.h"
#include "base/hub.h"
#include "config/read.h"

namespace augur {
namespace {

// The run's configuration so far, where there is one that can be read.
template <typename Config>
std::optional<Config> ConfigSoFar(const RunSection& run, Config (*read)(const std::filesystem::path&,
                                                                        std::span<const std::string>)) {
  const std::filesystem::path file = std::filesystem::path(run.dir) / "config.yaml";
  if (run.resume == "never" || !std::filesystem::exists(file)) return std::nullopt;
  try {
    return read(file, {});
  } catch (const Error&) {
    return std::nullopt;
  }
}

void PinFiles(const std::vector<std::string>& before, std::vector<std::string>* files) {
  for (std::string& file : *files) {
    const auto same =
        std::ranges::find_if(before, [&](const std::string& old) { return WithoutRevision(old) == file; });
    file = same != before.end() ? *same : PinData(file);
  }
}

void PinPath(std::initializer_list<std::string> before, std::string* path) {
  const auto same =
      std::ranges::find_if(before, [&](const std::string& old) { return WithoutRevision(old) == *path; });
  *path = same != before.end() ? *same : PinModel(*path);
}

}  // namespace

RlConfig PinRevisions(RlConfig config) {
  const RlConfig before = ConfigSoFar(config.run, &ReadRlConfig).value_or(RlConfig());
  PinPath({before.model.path, before.lora.adapter}, &config.model.path);
  PinPath({before.lora.adapter}, &config.lora.adapter);
  PinPath({before.model.reference}, &config.model.reference);
  PinFiles(before.data.train, &config.data.train);
  PinFiles(before.eval.files, &config.eval.files);
  return config;
}

SftConfig PinRevisions(SftConfig config) {
  const SftConfig before = ConfigSoFar(config.run, &ReadSftConfig).value_or(SftConfig());
  PinPath({before.model.path, before.lora.adapter}, &config.model.path);
  PinPath({before.lora.adapter}, &config.lora.adapter);
  PinFiles(before.data.train, &config.data.train);
  return config;
}

}  // namespace augur
