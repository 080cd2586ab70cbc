// Adds up the head's gradients chunk by chunk.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/head/head_pass.h"

namespace augur {

// The logits' gradient of n tokens.
struct GradientRows {
  at::Tensor values;  // [n, V]
  at::Tensor factor;  // [n] float, what each row is to be multiplied by; undefined for 1
  at::Tensor hidden;  // [n, d]
  at::Tensor tokens;  // [n] int64, which tokens of the batch these are; undefined for all from `begin` on
  int64_t begin = 0;
};

class HeadGradients {
 public:
  // `weight` holds the rows that logits are made of; gradients of padding rows behind them are zero.
  // `chunks` is how many times Add will be called at most.
  HeadGradients(const Head& head, const at::Tensor& weight, const HeadWants& wants, bool accumulate_float32,
                int64_t chunks);

  void Add(const GradientRows& rows);

  // Rounds to the arguments' types. Ends the use of this object.
  void Finish(HeadPassResult* out);

 private:
  void AddWeight(const GradientRows& rows);
  void AddBias(const GradientRows& rows);
  void SetHidden(const GradientRows& rows);

  Head head_;
  at::Tensor weight_;
  at::Tensor hidden_sum_, weight_sum_, bias_sum_;  // undefined where not wanted
  at::Tensor weight_part_;                         // a chunk's share, where no GEMM adds in float32
  bool started_ = false;
};

}  // namespace augur
