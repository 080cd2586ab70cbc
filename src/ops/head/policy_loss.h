// What the masked policy loss takes and gives, over full logits (logits_policy_loss.h) and straight from
// hidden states (linear_policy_loss.h) alike.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/head/surrogate.h"
#include "mask/loss_terms.h"

namespace augur {

// How logits are read.
struct LogitOptions {
  // Logits are divided by this, the temperature the tokens were sampled at.
  double temperature = 1;
  // Real vocabulary; columns of the logits behind it are padding and are never read. 0 takes all columns.
  int64_t vocab_size = 0;
  // Logits pass through softcap * tanh(logit / softcap) first; 0 leaves them.
  double softcap = 0;
  // Check the recorded values, too; on CUDA this waits for the device.
  bool validate = true;
};

// The recorded side of a batch. Tokens without a support (id -1 in column 0) are left out of the loss and
// counted.
struct RecordedTokens {
  at::Tensor support_ids;         // [T, M] int32 or int64
  at::Tensor support_logprobs;    // [T, M]
  at::Tensor advantages;          // [T]
  at::Tensor weights;             // [T]; undefined: the mean over the tokens that have a support
  at::Tensor reference_logprobs;  // [T]; needed where the terms have a reference_kl
};

// What a policy makes of tokens and their supports, at the temperature asked for.
struct LogProbs {
  at::Tensor support;                 // [T, M] log pi; -inf in unused columns
  at::Tensor tail_mass, tail_square;  // [T] sums of pi and of pi^2 outside the support
  at::Tensor entropy;                 // [T]

  at::Tensor sampled() const { return support.select(1, 0); }  // [T]
};

struct PolicyLoss {
  at::Tensor loss;  // scalar; the only output that carries a gradient
  LogProbs policy;
  at::Tensor ratio, divergence, direction, flags;  // [T], see ops/head/decide.h
  at::Tensor keep;                                 // [T] bool
  at::Tensor sums;                                 // [kDecisionSums] float64
};

}  // namespace augur
