// GGUF files (versions 2 and 3, little-endian): metadata, tensor descriptions, then the tensors' blocks.
//
// Reading maps the file and validates all of it before anything is taken from it: every count, string and
// array lies within the file, no key or tensor occurs twice, shapes do not overflow, and the tensors lie one
// after the other at the file's alignment, from the beginning of the data to its end. Memory stays in
// proportion to the file, never to a number written in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/file.h"
#include "formats/ggml_types.h"

namespace augur {

// Value types, numbered as the file numbers them.
enum class GgufValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// An array as it stands in the file: `size` checked elements.
struct GgufArray {
  GgufValueType type;
  uint64_t size;
  std::span<const std::byte> bytes;
};

// Integers of every width are one of the first two; a float32 is the double with its shortest decimal form,
// so that 1e-5 remains 1e-5. Strings and arrays point into the file.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

struct GgufTensor {
  GgmlType type;
  std::vector<int64_t> shape;        // row-major, the reverse of the file's order
  std::span<const std::byte> bytes;  // whole blocks, row after row
};

struct GgufContent {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::map<std::string, GgufTensor, std::less<>> tensors;
};

// The content of a whole file held in memory; values point into `file`. `where` opens error messages.
GgufContent ParseGguf(std::span<const std::byte> file, std::string_view where);

// One file; values stay valid while the object lives.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path);
  const GgufContent& content() const { return content_; }
  std::string where() const { return file_.path().string(); }

 private:
  MappedFile file_;
  GgufContent content_;
};

}  // namespace augur
