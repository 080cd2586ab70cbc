// The policy loss straight from hidden states: log-probs, decisions and both gradients of the LM head in one
// pass over chunks of tokens, without ever holding the logits of more than one chunk.
//
// Per chunk: logits Z = H W'; one sweep gives the row statistics and turns Z into powers, of which the
// gradient dZ is a multiple but at the support; decide; dW += dZ' H and dH = dZ W, rows without a gradient
// left out. That is one GEMM and, for the live rows, two more; backward only scales. With softcap, an entropy
// bonus, half or a spread vocabulary the gradient takes a sweep of its own. Tokens that can have no gradient
// are put into chunks of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "ops/policy_loss.h"

namespace augur {

struct HeadOptions {
  // vocab_size is that of the whole model; rows of the weight behind it are padding and get no gradient. 0
  // takes all rows.
  LossOptions loss;
  // Tokens per chunk; 0 chooses by the vocabulary so that a chunk's logits take about 1.2 GiB on CUDA and 96
  // MiB on the CPU. Larger chunks are faster, smaller ones need less memory.
  int64_t chunk = 0;
  // Add up the weight's gradient over chunks in float32 where the weight has 16 bits; the sum is rounded to
  // the weight's type at the end. Otherwise chunks are added in the weight's type, which needs half the
  // memory.
  bool accumulate_float32 = true;
  // The gradients, not the loss, are multiplied by this when they are formed, before rounding to 16 bits.
  double grad_scale = 1;
  // The process group over which the weight's rows are spread; empty: this process has all of them. Each rank
  // then passes its rows and bias, and the number of the first. Hidden states and all else are the same on
  // every rank, and so are the results; the hidden states' gradient is summed over ranks.
  std::string group;
  int64_t vocab_start = 0;
};

// What is multiplied: hidden [T, d] and weight [V, d] of one type (bf16, fp16, fp32, fp64), bias [V] or
// undefined.
struct Head {
  at::Tensor hidden, weight, bias;
};

// The loss of ComputePolicyLoss on the logits hidden weight' + bias; its gradient reaches hidden, weight and
// bias, whichever require one. The K+1 support logits are dot products of their own, accumulated in float32.
PolicyLoss ComputeLinearPolicyLoss(const MaskRule& rule, const Head& head, const RecordedTokens& recorded,
                                   const HeadOptions& options);

}  // namespace augur
