#include "data/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checksum.h"
#include "base/file.h"
#include "base/hub.h"
#include "data/task.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

FileFingerprint Whole(const std::string& path) {
  const MappedFile file(path);
  return {path, file.bytes().size(), fmt::format("{:016x}", Checksum(file.bytes()))};
}

FileFingerprint Sampled(const std::string& path) {
  constexpr size_t kPieces = 64, kPiece = 64 << 10;
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (bytes.size() <= kPieces * kPiece) return Whole(path);
  std::vector<std::byte> read;
  for (size_t i = 0; i < kPieces; ++i) {
    const auto piece = bytes.subspan((bytes.size() - kPiece) * i / (kPieces - 1), kPiece);
    read.insert(read.end(), piece.begin(), piece.end());
  }
  return {path, bytes.size(), fmt::format("{:016x}", Checksum(read))};
}

}  // namespace

std::vector<FileFingerprint> Fingerprint(const std::vector<std::string>& files) {
  std::vector<FileFingerprint> found;
  for (const std::string& path : files) {
    const bool known =
        std::ranges::any_of(found, [&](const FileFingerprint& file) { return file.path == path; });
    if (known || IsTask(path)) continue;
    for (const std::string& part : DataFiles(path)) {
      found.push_back(Whole(part));
    }
  }
  return found;
}

std::vector<FileFingerprint> FingerprintText(const fs::path& model) {
  std::vector<FileFingerprint> found;
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "chat_template.jinja"}) {
    const std::string path = (model / name).string();
    found.push_back(fs::is_regular_file(path) ? Whole(path)
                                              : FileFingerprint{.path = path, .size = 0, .checksum = ""});
  }
  return found;
}

std::vector<FileFingerprint> FingerprintWeights(const fs::path& model) {
  std::vector<FileFingerprint> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(model)) {
    if (entry.path().extension() == ".safetensors") found.push_back(Sampled(entry.path().string()));
  }
  std::ranges::sort(found, {}, &FileFingerprint::path);
  return found;
}

Json ToJson(const std::vector<FileFingerprint>& files) {
  Json list = Json::array();
  for (const FileFingerprint& file : files) {
    list.push_back({{"path", file.path}, {"size", file.size}, {"xxh64", file.checksum}});
  }
  return list;
}

std::vector<std::string> ChangedFiles(const Json& before, const std::vector<FileFingerprint>& now) {
  std::vector<std::string> changed;
  for (const Json& file : before) {
    const auto same = std::ranges::find(now, file.at("path").get<std::string>(), &FileFingerprint::path);
    if (same == now.end()) continue;
    const auto size = file.at("size").get<uint64_t>();
    const auto checksum = file.at("xxh64").get<std::string>();
    if (checksum.empty() != same->checksum.empty()) {
      changed.push_back(fmt::format("{}: {}", same->path, checksum.empty() ? "was not there" : "is gone"));
    } else if (size != same->size) {
      changed.push_back(fmt::format("{}: {} -> {} bytes", same->path, size, same->size));
    } else if (checksum != same->checksum) {
      changed.push_back(fmt::format("{}: other content", same->path));
    }
  }
  return changed;
}

}  // namespace augur
