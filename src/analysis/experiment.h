// One batch, one update under each criterion's mask, from the same state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/study.h"
#include "model/model.h"
#include "train/step/batch.h"
#include "train/step/optimizer.h"
#include "train/step/policy_step.h"

namespace augur {

struct ExperimentBatch {
  std::span<const TrainSample> samples;
  // The same responses with the whole vocabulary recorded; empty where that would be too much.
  std::span<const TrainSample> full;
  int64_t seed = 0;
};

// What is trained and how. The references must outlive the experiment.
struct ExperimentSetup {
  const Model& model;
  Optimizer& optimizer;
  const StepLoss& loss;  // the masked one; its rule gives thresholds and the ratio's cap
  OptimizerOptions optimizer_options;
  double lr = 0;
  std::span<const Proximity> divergences;
};

// Scores the batch, then makes one real update under every criterion's mask, scores the outside tokens again
// and puts model and optimizer back bit for bit. One outcome per divergence of the setup, each with the
// rule's delta. `decomposed` outside tokens of each have their first-order change split by cause.
std::vector<SeedOutcome> RunExperiment(const ExperimentSetup& setup, const ExperimentBatch& batch,
                                       int64_t decomposed);

}  // namespace augur
