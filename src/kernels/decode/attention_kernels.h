// Attention over pages by width of vectors, for paged_attention_cpu.cc.
//
// Neighbours along a sum lie together: a page holds, per key/value head, keys as [channels /
// 2][kPageTokens][2] and values as [kPageTokens / 2][padded][2] in bfloat16; [channels][kPageTokens] and
// [kPageTokens][padded] in float.
#pragma once

#include "kernels/decode/paged_attention.h"
#include "kernels/simd/lanes.h"

namespace augur {

inline constexpr int kMostAttendingHeads = 4;  // worked on at once

// What one thread needs for a token at this position.
inline int64_t AttentionScratchFloats(const PagedShape& shape, int64_t position) {
  const int64_t tokens = (position / (2 * kPageTokens) + 1) * 2 * kPageTokens;
  return kMostAttendingHeads * (tokens + shape.head_dim);
}

struct PagedPlace {
  PagedToken token;
  int kv_head;
};

template <typename T>
struct AttentionKernels {
  void (*write)(const PagedShape& shape, const KvPages<T>& pages, const PagedToken& token, const float* keys,
                const float* values);
  // The heads that share a key/value head: q and out [heads / kv_heads, head_dim]. Meanwhile the first keys
  // of the place that comes next are fetched.
  void (*attend)(const PagedShape& shape, const KvPages<T>& pages, const PagedPlace& here,
                 const PagedPlace& next, const float* q, float* out, float* scratch);
};
AUGUR_LANES_DECLARE(AttentionKernels<float>, kFloatAttention);
AUGUR_LANES_DECLARE(AttentionKernels<BFloat16>, kBf16Attention);

}  // namespace augur
