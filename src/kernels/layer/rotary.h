// What happens to queries and keys between projection and attention: an optional RMSNorm per head (Qwen3),
// then rotation by position.
#pragma once

#include <cstdint>

#include "kernels/layer/product_scale.h"
#include "kernels/simd/element.h"

namespace augur {

// A projection's rows are [heads + 2 * kv_heads, head_dim]: queries, keys, values. Rotated rows are
// [heads + kv_heads, head_dim]: queries, keys. T is float or BFloat16; the arithmetic is float.
template <typename T>
struct RotaryInput {
  int64_t tokens;
  int heads;
  int kv_heads;
  int head_dim;              // even; element i of the first half pairs with element i of the second
  const T* qkv;              // [tokens, heads + 2 * kv_heads, head_dim]
  const T* q_norm;           // [head_dim], or null for a family without query and key norms
  const T* k_norm;           // [head_dim], null together with q_norm
  float eps;                 // of the norms
  const int32_t* positions;  // [tokens]
  const float* cos;          // [positions, head_dim / 2]
  const float* sin;          // [positions, head_dim / 2]
  // In place of qkv, on CUDA for the forward alone: an FP8 product without its scales, which is rounded to T
  // once they are multiplied in.
  ProductScale scale = {};
  const float* product = nullptr;
};

// rotated [tokens, heads + kv_heads, head_dim].
template <typename T>
void RotaryForwardCpu(const RotaryInput<T>& in, T* rotated);

// On entry grad [tokens, heads + 2 * kv_heads, head_dim] holds the gradients of the rotated queries and keys
// and of the values; on return that of in.qkv. grad_norms [2, head_dim] receives those of q_norm and k_norm
// where they exist.
template <typename T>
void RotaryBackwardCpu(const RotaryInput<T>& in, T* grad, float* grad_norms);

// Keys and values of many sequences in pages, so that memory is taken as sequences grow and pages can be
// shared. Position p of sequence s stands in page page_table[s, p / page_size] at p % page_size; negative
// pages are not written.
template <typename T>
struct PagedKv {
  T* keys = nullptr;    // [pages, kv_heads, page_size, head_dim]
  T* values = nullptr;  // likewise
  int page_size;
  const int32_t* page_table;  // [sequences, table_stride]
  int64_t table_stride;
  const int32_t* sequence;  // [tokens]: whose token it is; null: token t is of sequence t
  // In place of keys and values, the same as e4m3 with a scale for each token and head, a power of two (so
  // that what they stand for has few bits in any format). Null where they are kept as T.
  uint8_t* keys_fp8 = nullptr;
  uint8_t* values_fp8 = nullptr;
  float* key_scale = nullptr;    // [pages, kv_heads, page_size]
  float* value_scale = nullptr;  // likewise
};

// The same on CUDA, head_dim up to 256, tensors on the device. Tokens at negative
// positions are left out. With `pages`, rotated keys and the values are stored there, too.
template <typename T>
void RotaryForwardCuda(const RotaryInput<T>& in, T* rotated, const PagedKv<T>* pages, void* stream);

// Gradients of rotated queries, rotated keys and values, [tokens, heads or kv_heads, head_dim] each, a
// token's row so many elements behind the one before.
template <typename T>
struct RotaryGradients {
  const T* q;
  const T* k;
  const T* v;
  int64_t q_row, k_row, v_row;
};

// grad_qkv from these. `partial` is scratch of [RotaryPartialRows(), 2, head_dim].
int64_t RotaryPartialRows();
template <typename T>
void RotaryBackwardCuda(const RotaryInput<T>& in, const RotaryGradients<T>& grads, T* grad_qkv,
                        float* partial, float* grad_norms, void* stream);

}  // namespace augur
