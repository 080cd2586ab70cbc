// Attention of single tokens over keys and values kept in pages, for generation.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

inline constexpr int kPageTokens = 16;

inline int PaddedHeadDim(int head_dim) { return (head_dim + 15) / 16 * 16; }

// The pages of one layer: [pages, kv_heads, kPageTokens * padded]. What lies where within a head's part is
// the kernels' own (attention_kernels.h, paged_attention_bfmmla.h).
template <typename T>
struct KvPages {
  T* keys;
  T* values;
};

struct PagedShape {
  int heads;  // a multiple of kv_heads; head h reads key/value head h / (heads / kv_heads)
  int kv_heads;
  int head_dim;  // even

  int64_t key_elements() const { return static_cast<int64_t>(kv_heads) * head_dim * kPageTokens; }
  int64_t value_elements() const {
    return static_cast<int64_t>(kv_heads) * PaddedHeadDim(head_dim) * kPageTokens;
  }
};

// Where a token stands: it attends to positions 0 .. position of the sequence with these pages.
struct PagedToken {
  const int32_t* pages;
  int32_t position;
};

// Writes a token's keys and values [kv_heads, head_dim], rounded to T, to its place.
template <typename T>
void WriteKvCpu(const PagedShape& shape, const KvPages<T>& pages, const PagedToken& token, const float* keys,
                const float* values);

// out [tokens, heads, head_dim] = softmax(q k^T / sqrt(head_dim)) v, q [tokens, heads, head_dim] with values
// that T holds, `q_stride` from one token to the next. Only positions in use are read. A token's result does
// not depend on the others or on the threads.
template <typename T>
void PagedAttentionCpu(const PagedShape& shape, const KvPages<T>& pages, const PagedToken* tokens,
                       int64_t count, const float* q, int64_t q_stride, float* out);

}  // namespace augur
