// The token decisions as a torch function.
#pragma once

#include <ATen/core/Tensor.h>

#include "mask/rule.h"

namespace augur {

struct Decisions {
  at::Tensor ratio, divergence, direction;  // [T], float32 (float64 for float64 inputs)
  at::Tensor keep;                          // [T] bool
  at::Tensor flags;                         // [T] uint8, bits of DecisionFlag
  at::Tensor coefficient;                   // [T] of A grad log pi(sampled); 0 where not kept
};

// What some rules need in addition to log-probs and advantages.
struct DecideFacts {
  at::Tensor tail_square, tail_cube;  // [T] sums of pi^2 and pi^3 outside the support, or undefined
  at::Tensor tail_mass;               // [T] sum of pi; undefined: one minus the rest
  at::Tensor lengths;                 // [responses] int, adding up to T, or undefined
};

// behaviour, policy: [T, M] log-probs over the support, column 0 the sampled token, -inf in unused columns of
// `behaviour`; advantages [T]. bf16, fp16, fp32 or fp64. Where behaviour and
// policy are both fp64, decisions are made in float64. Otherwise they are made in float32, and again in
// float64 for tokens whose divergence or predicted change float32 may put on the wrong side of its bound or
// leaves too few digits (IsDelicate in kernels/head/decide_math.h). With `validate`, values are checked (on
// CUDA this waits for the device); shapes, dtypes and devices always are. A rule with a statistic of a
// response or the batch is decided on the CPU, in float64.
Decisions Decide(const MaskRule& rule, const at::Tensor& behaviour, const at::Tensor& policy,
                 const at::Tensor& advantages, int64_t vocab_size, const DecideFacts& facts, bool validate);

}  // namespace augur
