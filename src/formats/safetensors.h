// safetensors files in and out: an 8-byte length, a JSON header, then the bytes of all tensors.
//
// Reading maps the file and validates the whole header before anything is taken from it: its length lies
// within the file and 100 MB, no name occurs twice, every shape times its dtype equals its byte range, and
// the ranges cover the rest of the file without gap or overlap. Anything else is an Error naming file and
// tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "formats/dtype.h"

namespace augur {

// A tensor inside a mapped file, row-major. `bytes` may start at any address: copy, do not cast.
struct TensorView {
  DType dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

struct SafetensorsContent {
  std::map<std::string, TensorView> tensors;
  std::map<std::string, std::string> metadata;
};

// The content of a whole file held in memory; the views point into `file`. `where` opens error messages.
SafetensorsContent ParseSafetensors(std::span<const std::byte> file, std::string_view where);

// One file; the views stay valid while the object lives.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::map<std::string, TensorView>& tensors() const { return content_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return content_.metadata; }

 private:
  MappedFile file_;
  SafetensorsContent content_;
};

// All weights of a model directory: model.safetensors, or model.safetensors.index.json with its shards. Every
// tensor the index lists stands in the shard it names, and the shards hold no other.
class SafetensorsDirectory {
 public:
  explicit SafetensorsDirectory(const std::filesystem::path& directory);
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }

 private:
  void ReadShards(const std::filesystem::path& directory, const std::filesystem::path& index);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorView> tensors_;
};

// Takes the next bytes of a tensor being written.
using ByteSink = std::function<void(std::span<const std::byte>)>;

// A tensor to be written. `write` is called once, when its turn has come, and hands over exactly
// shape × dtype bytes in pieces of any size, so that no tensor need exist before or after.
struct TensorSource {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::function<void(const ByteSink&)> write;
};

// A source over bytes that outlive it.
TensorSource SourceOf(std::string name, DType dtype, std::vector<int64_t> shape,
                      std::span<const std::byte> bytes);

// Writes the tensors, widest dtype first and then by name, so that each is aligned to its elements. The file
// appears complete or not at all. transformers wants metadata {"format", "pt"}.
void WriteSafetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                      const std::map<std::string, std::string>& metadata);

}  // namespace augur
