#include "analysis/inputs.h"

#include <filesystem>
#include <map>
#include <string>

#include "base/hub.h"
#include "reward/python_function.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

std::vector<FileFingerprint> ModelFiles(const std::string& model) {
  const std::string directory = ModelDirectory(model);
  if (!fs::is_directory(directory)) return {};  // whoever loads it says so
  std::vector<FileFingerprint> files = FingerprintText(directory);
  const std::vector<FileFingerprint> weights = FingerprintWeights(directory);
  files.insert(files.end(), weights.begin(), weights.end());
  return files;
}

template <typename Read>
void AddOnce(const std::string& name, const Read& read, std::vector<FileFingerprint>* files) {
  static std::map<std::string, std::vector<FileFingerprint>> known;
  auto found = known.find(name);
  if (found == known.end()) found = known.emplace(name, read(name)).first;
  files->insert(files->end(), found->second.begin(), found->second.end());
}

}  // namespace

std::vector<FileFingerprint> InputFiles(const RlConfig& config) {
  std::vector<FileFingerprint> files;
  std::vector<std::string> data = config.data.train;
  data.insert(data.end(), config.eval.files.begin(), config.eval.files.end());
  if (!config.reward.python.empty()) {
    if (const auto file = FileOfFunction(config.reward.python)) data.push_back(*file);
  }
  for (const std::string& name : data) {
    AddOnce(name, [](const std::string& file) { return Fingerprint({file}); }, &files);
  }
  for (const std::string& name : {config.model.path, config.model.reference, config.lora.adapter}) {
    if (!name.empty()) AddOnce(name, ModelFiles, &files);
  }
  return files;
}

}  // namespace augur
