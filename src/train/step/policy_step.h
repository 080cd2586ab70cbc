// The gradient of one minibatch: micro-batches forward and backward, decisions taken in the same pass.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>

#include "config/options.h"
#include "kernels/head/surrogate.h"
#include "mask/loss_terms.h"
#include "model/model.h"
#include "ops/parallel/ranks.h"
#include "train/step/batch.h"
#include "train/step/optimizer.h"

namespace augur {

// What defines the loss of a step: -Σ w c A under `terms.rule` with its other terms.
//   masked  the rule is the configured one
//   gspo    `response_rule` is the preset of that name with the section algorithm's bounds
//   cispo   the rule masks nothing and cuts the ratio at 1 + loss_clip_high, a fixed factor
//   tis     likewise at tis_cap. Where the samples carry an anchor of their own, the rule is the configured
//           one, and the truncated weight min(anchor / μ, tis_cap) is the samples' `importance`
struct StepLoss {
  LossKind kind = LossKind::kMasked;
  LossTerms terms = {};
  // Decides by response, from a first pass over the micro-batch; the rule of `terms` then masks nothing.
  std::optional<MaskRule> response_rule = std::nullopt;
  double tis_cap = 2;
  bool own_anchor = false;
  Aggregation aggregation = Aggregation::kTokenMean;
  int64_t horizon = 0;
  LogitOptions logits = {.validate = false};  // the engine of this process recorded the values
  int64_t micro_tokens = 16384;
  double load_balance_coef = 0;
  bool replay_routing = false;  // tokens go through the experts recorded with them
  ForwardOptions forward;
};

struct StepSums {
  std::array<double, kDecisionSums> sums{};
  double reference_kl = 0;  // Σ of the estimate over counted tokens
  double load_balance = 0;  // the load-balancing loss, before its coefficient
  // [sparse layers, experts] float64 on the CPU: how many response tokens each expert computed. Undefined
  // without experts.
  at::Tensor expert_load;

  double Mean(DecisionSum which) const { return sums[kSumTokens] > 0 ? sums[which] / sums[kSumTokens] : 0; }
};

// Called with every micro-batch and its decisions after its backward.
using DecisionVisitor = std::function<void(const MicroBatch&, const PolicyLoss&)>;

// Whether a sample can add to the gradient. One without an advantage, where the loss has no other term,
// cannot.
bool HasGradient(const TrainSample& sample, const StepLoss& loss);

// Adds the minibatch's gradient to the optimizer's. Nothing depends on how the samples fall into
// micro-batches beyond rounding: weights and sums are those of the whole minibatch. Samples behind the last
// that HasGradient are left out of the backward; the gradient's bits are those of the samples before them.
StepSums AccumulateMinibatch(const Model& model, Optimizer& optimizer, std::span<const TrainSample> samples,
                             const StepLoss& loss, const DecisionVisitor& visit = {});

// What one rank learns from of a minibatch: all of it where it is alone.
struct MinibatchShare {
  std::vector<TrainSample> samples;  // those that HasGradient first
  std::vector<float> weights;        // of their tokens, within the whole minibatch
  std::vector<size_t> cuts;          // where its micro-batches begin, and the end
  bool has_gradient = false;         // the minibatch, of whichever rank
  // Most micro-batches that any rank has, with gradients and without: every rank makes as many passes.
  size_t gradient_passes = 0;
  size_t other_passes = 0;
  Ranks ranks = Ranks(ProcessGroup{});  // that have the other shares

  size_t passes() const { return gradient_passes + other_passes; }
};

// This rank's share of a minibatch in which those that HasGradient go first; the samples are moved out of it.
// Ranks have about as many tokens each, in as many micro-batches where they have samples enough.
MinibatchShare TakeShare(std::span<TrainSample> minibatch, const StepLoss& loss, const Ranks& ranks);

// Adds the share's gradient to the optimizer's; its sums. Throws Stopped on every rank, between
// micro-batches, where a signal has reached one of them.
StepSums AccumulateShare(const Model& model, Optimizer& optimizer, const MinibatchShare& share,
                         const StepLoss& loss, const DecisionVisitor& visit = {});

// What a model, at loss.logits.temperature, makes of the responses' recorded supports: called with every
// micro-batch, split as AccumulateMinibatch would split these samples, so that the numbers are those of the
// loss.
using ScoreVisitor = std::function<void(const MicroBatch&, const LogProbs&)>;
void ForEachScored(const Model& model, std::span<const TrainSample> samples, const StepLoss& loss,
                   const ScoreVisitor& visit);
// Split as the share is.
void ForEachScored(const Model& model, const MinibatchShare& share, const StepLoss& loss,
                   const ScoreVisitor& visit);

// The same of a share, by sample: [tokens, columns] log-probs, -inf in unused columns.
std::vector<std::vector<float>> ScoreSupport(const Model& model, const MinibatchShare& share,
                                             const StepLoss& loss);

}  // namespace augur
