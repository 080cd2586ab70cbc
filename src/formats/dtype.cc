#include "formats/dtype.h"

namespace augur {
namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  size_t size;
};

// In the order of the enumeration.
constexpr Entry kTable[] = {
    {DType::kF64, "F64", 8},   {DType::kF32, "F32", 4},        {DType::kF16, "F16", 2},
    {DType::kBF16, "BF16", 2}, {DType::kI64, "I64", 8},        {DType::kI32, "I32", 4},
    {DType::kI16, "I16", 2},   {DType::kI8, "I8", 1},          {DType::kU8, "U8", 1},
    {DType::kBool, "BOOL", 1}, {DType::kF8E4M3, "F8_E4M3", 1}, {DType::kF8E5M2, "F8_E5M2", 1},
};

}  // namespace

size_t DTypeSize(DType dtype) { return kTable[static_cast<size_t>(dtype)].size; }

std::string_view DTypeName(DType dtype) { return kTable[static_cast<size_t>(dtype)].name; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const Entry& entry : kTable) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace augur
