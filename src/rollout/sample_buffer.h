// The results of sampling in one piece of memory, so that they leave a GPU in one copy.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/decode/sample_support.h"

namespace augur {

// For `draws` draws of `columns` columns of support: tokens, log-probs, supports, flags. The tokens come
// first.
struct SampleBuffer {
  int64_t draws, columns;

  int64_t bytes() const { return draws * (4 + 4 + 8 * columns + 1); }

  SampleResults At(void* memory) const {
    auto* words = static_cast<int32_t*>(memory);
    return {words, reinterpret_cast<float*>(words + draws), words + 2 * draws,
            reinterpret_cast<float*>(words + (2 + columns) * draws),
            reinterpret_cast<uint8_t*>(words + (2 + 2 * columns) * draws)};
  }

  // Copies the result in place `from` of `memory` to place `to` of `out`.
  void Read(void* memory, int64_t from, const SampleResults& out, int64_t to) const {
    const SampleResults in = At(memory);
    out.tokens[to] = in.tokens[from];
    out.logprobs[to] = in.logprobs[from];
    out.finite[to] = in.finite[from];
    if (columns == 0) return;
    std::memcpy(out.support_ids + to * columns, in.support_ids + from * columns, columns * 4);
    std::memcpy(out.support_logprobs + to * columns, in.support_logprobs + from * columns, columns * 4);
  }
};

}  // namespace augur
