// The masked policy loss over full logits: the reference that the one-pass head is held to, and the right
// choice wherever logits exist anyway. Its two halves as plain functions: forward with all statistics, and
// the gradient from them. policy_loss.cc binds them together for autograd and registers them for Python.
#pragma once

#include "ops/head/policy_loss.h"

namespace augur {

struct PolicyLossForward {
  PolicyLoss result;
  // What the backward needs, all of the compute type (float32, or float64 for float64 logits).
  at::Tensor log_sum_exp;     // [T]
  at::Tensor dense;           // [T]
  at::Tensor entropy_weight;  // [T]
  at::Tensor sparse;          // [T, M]
  at::Tensor support;         // [T, M] int32
};

// logits [T, V] in bf16, fp16, fp32 or fp64.
PolicyLossForward PolicyLossForwardImpl(const MaskRule& rule, const at::Tensor& logits,
                                        const RecordedTokens& recorded, const LossOptions& options);

// d loss / d logits times grad_loss, of the logits' shape and type: the gradient of the loss with decisions
// held fixed. Rows without a contribution get exact zeros.
at::Tensor PolicyLossBackwardImpl(const at::Tensor& grad_loss, const at::Tensor& logits,
                                  const at::Tensor& support, const at::Tensor& log_sum_exp,
                                  const at::Tensor& entropy, const at::Tensor& dense,
                                  const at::Tensor& entropy_weight, const at::Tensor& sparse,
                                  double temperature, int64_t vocab_size, double softcap);

}  // namespace augur
