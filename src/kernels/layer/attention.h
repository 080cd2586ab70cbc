// Causal attention over packed sequences (no padding), with grouped key/value heads.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

struct AttentionShape {
  int heads;  // a multiple of kv_heads; head h reads key/value head h / (heads / kv_heads)
  int kv_heads;
  int head_dim;
  int64_t sequences;
  const int32_t* cu_seqlens;  // [sequences + 1]: sequence s holds tokens cu_seqlens[s] .. cu_seqlens[s + 1]
};

// A packed [tokens, heads, head_dim] array whose tokens stand `stride` elements apart, so that queries, keys
// and values can be parts of one projection.
template <typename T>
struct TokenRows {
  T* data;
  int64_t stride;
};

// out = softmax(q k^T / sqrt(head_dim)) v within each sequence, each token seeing itself and what precedes
// it. Sums are float whatever T is (float or BFloat16). lse [tokens, heads] receives the log-sum-exp of each
// row, which the backward needs. Results do not depend on the number of threads.
template <typename T>
void AttentionForwardCpu(const AttentionShape& shape, TokenRows<const T> q, TokenRows<const T> k,
                         TokenRows<const T> v, TokenRows<T> out, float* lse);

// Gradients of q, k and v (overwritten) from that of out.
template <typename T>
void AttentionBackwardCpu(const AttentionShape& shape, TokenRows<const T> q, TokenRows<const T> k,
                          TokenRows<const T> v, TokenRows<const T> out, const float* lse,
                          TokenRows<const T> grad_out, TokenRows<T> grad_q, TokenRows<T> grad_k,
                          TokenRows<T> grad_v);

}  // namespace augur
