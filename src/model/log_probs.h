// Log-probabilities of given tokens, without holding the logits of all rows at once.
#pragma once

#include <ATen/core/Tensor.h>

namespace augur {

// hidden [T, hidden] (after the final norm), head [vocab, hidden], targets [T] int64 → [T] float32: the
// log-softmax of hidden · headᵀ at each row's target. Works through chunks of rows with about 16 million
// logits. The log-sum-exp is float32; in bfloat16 the target's own logit is taken with float32 accumulation
// too, since rounding a logit of 16 to bfloat16 errs by up to 0.06. Differentiable, then keeping the logits
// of all chunks.
at::Tensor TokenLogProbs(const at::Tensor& hidden, const at::Tensor& head, const at::Tensor& targets);

}  // namespace augur
