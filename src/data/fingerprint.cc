#include "data/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checksum.h"
#include "base/file.h"
#include "base/hub.h"
#include "data/task.h"

namespace augur {

std::vector<FileFingerprint> Fingerprint(const std::vector<std::string>& files) {
  std::vector<FileFingerprint> found;
  for (const std::string& path : files) {
    const bool known =
        std::ranges::any_of(found, [&](const FileFingerprint& file) { return file.path == path; });
    if (known || IsTask(path)) continue;
    for (const std::string& part : DataFiles(path)) {
      const MappedFile file(part);
      found.push_back({part, file.bytes().size(), fmt::format("{:016x}", Checksum(file.bytes()))});
    }
  }
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
    if (size != same->size) {
      changed.push_back(fmt::format("{}: {} -> {} bytes", same->path, size, same->size));
    } else if (file.at("xxh64").get<std::string>() != same->checksum) {
      changed.push_back(fmt::format("{}: other content", same->path));
    }
  }
  return changed;
}

}  // namespace augur
