// Products of a few tokens with a weight, on a GPU: the weight is read from memory once, and is on its way
// before the kernel in front is done. A token's results do not depend on the others.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

struct FewTokensProduct {
  int64_t tokens = 0;
  int64_t in = 0, out = 0;
  const BFloat16* x = nullptr;  // [tokens, in]
  // [out, in]. Not written by a kernel of the stream that may still be running.
  const BFloat16* weight = nullptr;
  BFloat16* y = nullptr;  // [tokens, out]
};

// Whether the kernel takes them: up to 64 tokens, widths of whole vectors, a GPU with Hopper's tensor cores.
bool HasFewTokensProductCuda(const FewTokensProduct& product);

// Whether it takes them and is faster than cuBLAS: where its blocks all run at once, on most of the GPU.
bool PaysFewTokensProductCuda(const FewTokensProduct& product);

// y = x weight', summed in float32 in an order that `in` determines.
void FewTokensProductCuda(const FewTokensProduct& product, void* stream);

}  // namespace augur
