#include "config/pin.h"

#include <filesystem>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hub.h"
#include "base/json.h"
#include "config/read.h"

namespace augur {
namespace {

// Whether run.resume begins another line of steps: `never` does so once (train/run/resume.h).
bool BeginsAnew(const RunSection& run) {
  const std::filesystem::path line = std::filesystem::path(run.dir) / "line.json";
  if (run.resume != "never") return false;
  return !std::filesystem::exists(line) ||
         ParseJson(ReadFile(line), line.string()).value("resume", "") != "never";
}

// The run's configuration so far, where there is one that can be read.
template <typename Config>
std::optional<Config> ConfigSoFar(const RunSection& run, Config (*read)(const std::filesystem::path&,
                                                                        std::span<const std::string>)) {
  const std::filesystem::path file = std::filesystem::path(run.dir) / "config.yaml";
  if (BeginsAnew(run) || !std::filesystem::exists(file)) return std::nullopt;
  try {
    return read(file, {});
  } catch (const Error&) {
    return std::nullopt;
  }
}

void PinFiles(const std::vector<std::string>& before, std::vector<std::string>* files) {
  for (size_t i = 0; i < files->size(); ++i) {
    // Each to its own: a list may hold two revisions of a data set.
    const bool same_list = files->size() == before.size();
    std::string& file = (*files)[i];
    file = PinData(file, same_list ? std::span(before).subspan(i, 1) : before);
  }
}

}  // namespace

RlConfig PinRevisions(RlConfig config) {
  const RlConfig before = ConfigSoFar(config.run, &ReadRlConfig).value_or(RlConfig());
  config.model.path = PinModel(config.model.path, std::vector{before.model.path, before.lora.adapter});
  config.lora.adapter = PinModel(config.lora.adapter, {&before.lora.adapter, 1});
  config.model.reference = PinModel(config.model.reference, {&before.model.reference, 1});
  PinFiles(before.data.train, &config.data.train);
  PinFiles(before.eval.files, &config.eval.files);
  return config;
}

SftConfig PinRevisions(SftConfig config) {
  const SftConfig before = ConfigSoFar(config.run, &ReadSftConfig).value_or(SftConfig());
  config.model.path = PinModel(config.model.path, std::vector{before.model.path, before.lora.adapter});
  config.lora.adapter = PinModel(config.lora.adapter, {&before.lora.adapter, 1});
  PinFiles(before.data.train, &config.data.train);
  return config;
}

}  // namespace augur
