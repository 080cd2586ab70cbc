// Multiplies an array in place by one value on its device; a value of exactly 1 touches no memory.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

// `type` is kFloat, kBFloat16 or kHalf; `factor` points to one float on the device. CPU tensors need no
// kernel.
void ScaleCuda(void* data, ElementType type, int64_t size, const float* factor, void* stream);

}  // namespace augur
