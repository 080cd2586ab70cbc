#include "analysis/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "base/checksum.h"
#include "base/file.h"
#include "base/hub.h"
#include "reward/python_function.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLookedAt = 1 << 20;  // bytes at either end of a model's file

FileFingerprint ModelFile(const fs::path& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  const size_t end = std::min(bytes.size(), kLookedAt);
  return {path.string(), bytes.size(),
          fmt::format("{:016x}{:016x}", Checksum(bytes.first(end)), Checksum(bytes.last(end)))};
}

std::vector<FileFingerprint> ModelFiles(const std::string& model) {
  const std::string directory = ModelDirectory(model);
  std::vector<FileFingerprint> files;
  if (!fs::is_directory(directory)) return files;  // whoever loads it says so
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.is_regular_file()) files.push_back(ModelFile(entry.path()));
  }
  std::ranges::sort(files, {}, &FileFingerprint::path);
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
