// Files as they were when a run read them, so that a resumed run notices a changed one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"

namespace augur {

struct FileFingerprint {
  std::string path;  // as the configuration names it
  uint64_t size = 0;
  std::string checksum;  // XXH64, in hexadecimal; empty where there is no such file
};

// Of each file, once; tasks (data/task.h) follow from their names and are passed over.
std::vector<FileFingerprint> Fingerprint(const std::vector<std::string>& files);

// Of the files of a model's directory that decide its shape and its tokens, there or not: config.json,
// generation_config.json, tokenizer.json, tokenizer_config.json and chat_template.jinja.
std::vector<FileFingerprint> FingerprintText(const std::filesystem::path& model);
// Of its safetensors files: the checksum is that of 64 pieces of 64 KiB, evenly spaced from the first to the
// last byte, or of the whole file where that is less, so that a large model does not delay a start.
std::vector<FileFingerprint> FingerprintWeights(const std::filesystem::path& model);

Json ToJson(const std::vector<FileFingerprint>& files);

// "rows.jsonl: 120 -> 140 bytes" for every file of `before`, as ToJson wrote it, that is among `now` and
// differs.
std::vector<std::string> ChangedFiles(const Json& before, const std::vector<FileFingerprint>& now);

}  // namespace augur
