// Element types of stored tensors, named as safetensors names them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace augur {

enum class DType { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool, kF8E4M3, kF8E5M2 };

size_t DTypeSize(DType dtype);            // bytes per element
std::string_view DTypeName(DType dtype);  // "BF16", "F8_E4M3", ...
std::optional<DType> DTypeFromName(std::string_view name);

}  // namespace augur
