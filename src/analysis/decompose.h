// Why did a token's divergence change? The first-order change by one AdamW update, split by cause.
//
// With P = lr / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps), v the second average after the update, the
// update is exactly
//   -P beta1 m  -  P (1 - beta1) c (g_own + g_others)  -  lr weight_decay theta
// with m the first average before it, g the minibatch's gradient and c what clipping left of it. The gradient
// of the token's divergence times each term is that cause's part.
#pragma once

#include <ATen/core/Tensor.h>

#include "analysis/state_copy.h"
#include "analysis/study.h"
#include "train/step/batch.h"
#include "train/step/optimizer.h"
#include "train/step/policy_step.h"

namespace augur {

// The terms of one update, each as long as all parameters together, in the order of StoredTensors.
struct UpdateTerms {
  at::Tensor momentum;       // -P beta1 m
  at::Tensor gradient_rate;  // -P (1 - beta1) c, to be multiplied by a gradient
  at::Tensor gradient;       // g, before clipping
  at::Tensor weight_decay;   // -lr weight_decay theta

  at::Tensor Update() const;      // their sum: the change of the parameters
  double MomentumCosine() const;  // between the momentum's term and the whole
};

// Values by parameter, in the order of Parameters(), as one float32 vector in the order of StoredTensors;
// undefined ones count as zero.
at::Tensor FlattenByName(const Model& model, const std::vector<at::Tensor>& by_parameter);

// After the update whose gradient (FlattenByName of the optimizer's) and result are given; `before` is the
// state it started from.
UpdateTerms MakeUpdateTerms(const StateCopy& before, const Optimizer& optimizer,
                            const OptimizerOptions& options, const at::Tensor& gradient,
                            const UpdateResult& result, double lr);

// One token of a sample: `position` within the response, and the weight its loss has in the minibatch.
struct TokenPlace {
  const TrainSample* sample = nullptr;
  int64_t position = 0;
  double weight = 0;
};

// The parts for one token's divergence of that kind; the model must be in the state before the update.
// `token` is left 0.
ChangeParts DecomposeChange(const Model& model, const StepLoss& loss, Proximity divergence,
                            const TokenPlace& place, const UpdateTerms& terms);

}  // namespace augur
