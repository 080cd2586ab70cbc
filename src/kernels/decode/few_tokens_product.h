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
  // [out, in]. Not written by the kernel that was launched just before.
  const BFloat16* weight = nullptr;
  BFloat16* y = nullptr;  // [tokens, out]
};

// How a product is divided: each cluster of `splits` blocks takes `rows` of the weight, each of its blocks a
// part of their width. Stages are the tiles of a block, [rows or 64, 64], that are on their way at a time.
struct FewTokensDivision {
  int rows, splits;
  int weight_stages, token_stages;
};
inline constexpr FewTokensDivision kFewTokensDivisions[] = {
    // One block to a multiprocessor.
    {192, 4, 8, 4},
    {160, 8, 8, 8},
    {160, 8, 9, 5},
    {80, 4, 16, 8},
    {96, 2, 14, 7},
    // Two.
    {96, 4, 7, 3},
    {80, 8, 8, 4},
    // More, or one beside a block of another kernel that has up to 149 KB of shared memory.
    {96, 4, 4, 3},
    {96, 2, 4, 3},
    {80, 4, 5, 3},
    {80, 8, 5, 3},
    {160, 8, 3, 2},
};

// Whether the kernel takes them: up to 64 tokens, widths of whole vectors, a GPU with Hopper's tensor cores.
bool HasFewTokensProductCuda(const FewTokensProduct& product);

// y = x weight', summed in float32 in an order that in, out and the GPU determine. `division` is an index of
// kFewTokensDivisions; -1: chosen by the sizes.
void FewTokensProductCuda(const FewTokensProduct& product, void* stream, int division = -1);

}  // namespace augur
