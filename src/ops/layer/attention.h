// From a query-key-value projection to the attention's output, over packed sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace augur {

// Where the tokens of a packed batch stand; tensors are on the batch's device.
struct SequenceLayout {
  at::Tensor cu_seqlens;  // [sequences + 1] int32, from 0 to tokens
  at::Tensor positions;   // [tokens] int32, within the sequence
  int64_t max_length;     // of the sequences
  at::Tensor cos;         // [>= max_length, head_dim / 2] float32
  at::Tensor sin;         // [>= max_length, head_dim / 2] float32
};

struct AttentionSettings {
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  double eps;  // of the query and key norms
};

// qkv [tokens, (heads + 2 * kv_heads) * head_dim] float32 or bfloat16 → [tokens, heads * head_dim]: RMSNorm
// per head where q_norm and k_norm [head_dim] are defined, rotation, causal attention within each sequence. A
// blocked kernel on the CPU; on CUDA, in bfloat16, cuDNN's kernels for large batches and torch's flash
// kernels for others, in float32 torch's memory-efficient ones: no scores are kept, but for head_dim that is
// no multiple of 4, for which the reference below computes.
at::Tensor RotaryAttention(const at::Tensor& qkv, const at::Tensor& q_norm, const at::Tensor& k_norm,
                           const SequenceLayout& layout, const AttentionSettings& settings);

// The same in plain tensor operations, one sequence after the other, every score kept: the reference.
at::Tensor RotaryAttentionReference(const at::Tensor& qkv, const at::Tensor& q_norm, const at::Tensor& k_norm,
                                    const SequenceLayout& layout, const AttentionSettings& settings);

}  // namespace augur
