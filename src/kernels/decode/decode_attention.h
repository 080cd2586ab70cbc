// Attention of one new token per sequence over that sequence's keys and values in pages, on a GPU.
//
// A key/value head is read once for all query heads that share it, by tensor cores, so that the time is that
// of reading the keys and values. Lengths stand on the device and the grid depends on `sequences` and
// `splits` alone: the call can be captured in a graph.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

template <typename T>
struct DecodeAttention {
  int64_t sequences = 0;
  int heads = 0;  // a multiple of kv_heads; head h reads key/value head h / (heads / kv_heads)
  int kv_heads = 0;
  int head_dim = 0;           // up to 256
  const T* q = nullptr;       // [sequences, heads, head_dim]
  int64_t q_stride = 0;       // elements from one sequence's queries to the next one's
  const T* keys = nullptr;    // [pages, kv_heads, page_size, head_dim], as in PagedKv
  const T* values = nullptr;  // likewise
  // In place of keys and values: e4m3 with scales, as in PagedKv.
  const uint8_t* keys_fp8 = nullptr;
  const uint8_t* values_fp8 = nullptr;
  const float* key_scale = nullptr;
  const float* value_scale = nullptr;
  int page_size = 0;                    // a multiple of 16
  const int32_t* page_table = nullptr;  // [sequences, table_stride]
  int64_t table_stride = 0;
  const int32_t* positions = nullptr;  // [sequences]: keys 0 .. positions[s] are seen; negative: out is zero
  // [sequences]: the row of page_table that each reads, so that tokens of one sequence can be given as many;
  // null: its own.
  const int32_t* owners = nullptr;
  T* out = nullptr;  // [sequences, heads, head_dim]
  // Each sequence is divided among this many blocks, whose results the last one combines; 1 needs no
  // workspace.
  int splits = 1;
  void* workspace = nullptr;  // DecodeAttentionWorkspaceBytes, zeroed once
};

// How many splits fill the GPU for sequences of up to `longest` tokens.
int DecodeAttentionSplits(int64_t sequences, int kv_heads, int64_t longest);
int64_t DecodeAttentionWorkspaceBytes(int64_t sequences, int heads, int head_dim, int splits);

// T is float or BFloat16. bfloat16 heads of 64 and 128 take the fast kernel.
template <typename T>
void DecodeAttentionCuda(const DecodeAttention<T>& in, void* stream);

}  // namespace augur
