// The LM head as the operators take it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "ops/head/policy_loss.h"

namespace augur {

// What is multiplied: hidden [T, d] and weight [V, d] of one type (bf16, fp16, fp32, fp64), bias [V] or
// undefined.
struct Head {
  at::Tensor hidden, weight, bias;
};

// Which of a head's tensors gradients are formed for.
struct HeadWants {
  bool hidden = false, weight = false, bias = false;
  bool any() const { return hidden || weight || bias; }
};

// Those that require a gradient; none where gradients are switched off.
HeadWants WantsOf(const Head& head);

struct HeadOptions {
  // vocab_size is that of the whole model; rows of the weight behind it are padding and get no gradient. 0
  // takes all rows.
  LogitOptions logits;
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
  std::string group = {};
  int64_t vocab_start = 0;
};

}  // namespace augur
