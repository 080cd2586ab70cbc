// Attention over pages of bfloat16 on BFMMLA, for paged_attention_cpu.cc. Only where AttendsWithBfmmla().
//
// A page holds, per key/value head, keys as [channels / 4][kPageTokens][4] and values as
// [channels / 16][kPageTokens / 4][16][4 tokens], so that four neighbours along a sum lie together.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/decode/attention_kernels.h"
#include "kernels/simd/isa.h"

namespace augur {

// Channels are multiplied in fours.
inline bool AttendsWithBfmmla(const PagedShape& shape) {
  return shape.head_dim % 4 == 0 && CurrentIsa() == Isa::kBfmmla;
}

void WriteKvBfmmla(const PagedShape& shape, const KvPages<BFloat16>& pages, const PagedToken& token,
                   const float* keys, const float* values);

// What one thread works with.
struct Bf16AttentionScratch {
  std::vector<uint16_t> queries, weights;
  std::vector<float> scores;
};

// The heads that share a key/value head: q and out [heads / kv_heads, head_dim]. Meanwhile the keys and
// values of the place that comes next are fetched.
void AttendBfmmla(const PagedShape& shape, const KvPages<BFloat16>& pages, const PagedPlace& here,
                  const PagedPlace* next, const float* q, float* out, Bf16AttentionScratch* scratch);

}  // namespace augur
