// GGML blocks to float32, in the operations and the order of the Python package gguf, so that the bits agree.
#pragma once

#include <cstddef>
#include <span>

#include "formats/ggml_types.h"

namespace augur {

// Writes the values of `blocks` (whole blocks of `type`, at any alignment) to `out`, which has room for
// exactly as many.
void Dequantize(GgmlType type, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace augur
