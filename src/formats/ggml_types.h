// The element types a GGUF file stores tensors in: values in blocks, each block a fixed number of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace augur {

// The types Augur reads, numbered as GGUF numbers them.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

struct GgmlTypeInfo {
  GgmlType type;
  std::string_view name;
  size_t block_values;  // values per block
  size_t block_bytes;
};

// What is known of a type number found in a file; null for one Augur does not read.
const GgmlTypeInfo* FindGgmlType(uint32_t number);
const GgmlTypeInfo& InfoOf(GgmlType type);

// For messages: the name of any type, read or not, and the names of all that are read.
std::string GgmlTypeName(uint32_t number);
std::string GgmlTypeNames();

}  // namespace augur
