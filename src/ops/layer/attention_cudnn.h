// Attention over packed sequences by cuDNN: on Hopper about twice as fast as torch's flash kernels. cuDNN
// compiles a plan for every shape, which takes tenths of a second, so shapes are rounded up and plans kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>
#include <utility>

#include "ops/layer/attention.h"

namespace augur {

// [tokens, heads, head_dim] each, k and v with fewer heads; a token's heads lie together, tokens may lie
// apart.
struct AttentionHeads {
  at::Tensor q, k, v;
};

// Whether cuDNN is compiled in, works here, and the batch is large enough to be worth a plan.
bool CudnnAttentionPays(const AttentionHeads& heads, const SequenceLayout& layout);

// Causal attention within each sequence, in bfloat16: its output, contiguous, and what the backward needs of
// the softmax. q and k are parts of one tensor [tokens, heads + kv_heads, head_dim].
std::pair<at::Tensor, at::Tensor> CudnnAttentionForward(const AttentionHeads& heads,
                                                        const SequenceLayout& layout);

// Gradients, q's and k's again parts of one tensor. `grad_out` is contiguous.
AttentionHeads CudnnAttentionBackward(const at::Tensor& grad_out, const AttentionHeads& heads,
                                      const at::Tensor& out, const at::Tensor& softmax,
                                      const SequenceLayout& layout);

}  // namespace augur
