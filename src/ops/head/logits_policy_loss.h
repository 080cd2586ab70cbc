// The masked policy loss over full logits: the reference that the one-pass head is held to, and the right
// choice wherever logits exist anyway. Its two halves as plain functions: forward with all statistics, and
// the gradient from them. policy_loss.cc binds them together for autograd and registers them for Python.
#pragma once

#include "ops/head/policy_loss.h"

namespace augur {

// What the backward needs, all of the compute type (float32, or float64 for float64 logits).
struct SavedRows {
  at::Tensor log_sum_exp, entropy;   // [T]
  at::Tensor dense, entropy_weight;  // [T]
  at::Tensor support;                // [T, M] int32
};

struct PolicyLossForward {
  PolicyLoss result;
  SavedRows saved;
};

// logits [T, V] in bf16, fp16, fp32 or fp64.
PolicyLossForward PolicyLossForwardImpl(const LossTerms& terms, const at::Tensor& logits,
                                        const RecordedTokens& recorded, const LogitOptions& options);

// d loss / d logits times grad_loss, of the logits' shape and type: the gradient of the loss with decisions
// held fixed. Rows without a contribution get exact zeros.
// `options` are the forward's.
at::Tensor PolicyLossBackwardImpl(const at::Tensor& grad_loss, const at::Tensor& logits,
                                  const SavedRows& saved, const LogitOptions& options);

}  // namespace augur
