// SwiGLU of a few tokens' products with the weights of gate and up, on a GPU: the weights are read from
// memory once, and the products never are. A token's results do not depend on the others.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

struct GateUpProduct {
  int64_t tokens = 0;
  int64_t in = 0, width = 0;
  const BFloat16* x = nullptr;  // [tokens, in]
  // [2 width, in]: gate, then up. Not written by a kernel of the stream that may still be running.
  const BFloat16* weight = nullptr;
  BFloat16* y = nullptr;  // [tokens, width]
};

// Whether the kernel takes them: up to 64 tokens, widths of whole vectors, a GPU with Hopper's tensor cores.
bool HasGateUpProductCuda(const GateUpProduct& product);

// The same values as a product rounded to bfloat16 and kernels/layer/swiglu.h, up to the order of the sums.
void GateUpProductCuda(const GateUpProduct& product, void* stream);

}  // namespace augur
