// Data files as they were when a run read them, so that a resumed run notices a changed one.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace augur {

struct FileFingerprint {
  std::string path;  // as the configuration names it
  uint64_t size = 0;
  std::string checksum;  // XXH64, in hexadecimal
};

// Of each file, once; tasks (data/task.h) follow from their names and are passed over.
std::vector<FileFingerprint> Fingerprint(const std::vector<std::string>& files);

Json ToJson(const std::vector<FileFingerprint>& files);

// "rows.jsonl: 120 -> 140 bytes" for every file of `before`, as ToJson wrote it, that is among `now` and
// differs.
std::vector<std::string> ChangedFiles(const Json& before, const std::vector<FileFingerprint>& now);

}  // namespace augur
