// Adds up the head's gradients chunk by chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/head_pass.h"

namespace augur {

class HeadGradients {
 public:
  // `weight` holds the rows that logits are made of; gradients of padding rows behind them are zero.
  // `chunks` is how many times Add will be called at most.
  HeadGradients(const Head& head, const at::Tensor& weight, const HeadWants& wants, bool accumulate_float32,
                int64_t chunks);

  // logit_gradient [n, V] belongs to n of the `rows` tokens from `begin` on: to all of them, or, with
  // `source` [n], to tokens begin + source.
  void Add(const at::Tensor& logit_gradient, int64_t begin, int64_t rows, const at::Tensor& source);

  // Rounds to the arguments' types. Ends the use of this object.
  void Finish(HeadPassResult* out);

 private:
  void AddWeight(const at::Tensor& logit_gradient, const at::Tensor& hidden);

  Head head_;
  at::Tensor weight_;
  at::Tensor hidden_sum_, weight_sum_, bias_sum_;  // undefined where not wanted
  at::Tensor weight_part_;                         // a chunk's share, where no GEMM adds in float32
  bool started_ = false;
};

}  // namespace augur
