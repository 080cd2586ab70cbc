// The token decisions as a torch function.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "mask/rule.h"

namespace augur {

struct Decisions {
  at::Tensor ratio, divergence, direction;  // [T], float32 (float64 for float64 inputs)
  at::Tensor keep;                          // [T] bool
  at::Tensor flags;                         // [T] uint8, bits of DecisionFlag
};

// behaviour, policy: [T, M] log-probs over the support, column 0 the sampled token, -inf in unused columns of
// `behaviour`; advantages [T]; tail_square and tail_mass [T], the sums of pi^2 and pi outside the support; an
// undefined tail_mass is taken as one minus the rest. bf16, fp16, fp32 or fp64. Where behaviour and
// policy are both fp64, decisions are made in float64. Otherwise they are made in float32, and again in
// float64 for tokens whose divergence or predicted change float32 may put on the wrong side of its bound or
// leaves too few digits (IsDelicate in kernels/head/decide_math.h). With `validate`, values are checked (on
// CUDA this waits for the device); shapes, dtypes and devices always are.
Decisions Decide(const MaskRule& rule, const at::Tensor& behaviour, const at::Tensor& policy,
                 const at::Tensor& advantages, int64_t vocab_size,
                 const std::optional<at::Tensor>& tail_square, bool validate,
                 const at::Tensor& tail_mass = {});

}  // namespace augur
