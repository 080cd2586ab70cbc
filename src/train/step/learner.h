// The updates of one step: advantages, minibatches, epochs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "config/config.h"
#include "metrics/step_metrics.h"
#include "model/model.h"
#include "train/step/bad_updates.h"
#include "train/step/experience.h"
#include "train/step/policy_step.h"

namespace augur {

// What may be watched or disturbed while a step learns.
struct LearnHooks {
  // Called with every micro-batch of the step's last minibatch, before its update.
  DecisionVisitor last_minibatch;
  // Called before each update with this rank's samples and the sums of all, and again after it; the gradients
  // stand in the optimizer before.
  std::function<void(std::span<const TrainSample> samples, const StepSums& sums)> before_update;
  std::function<void(const UpdateResult& result)> after_update;
  // Called before the first update of a step that has several.
  std::function<void()> several_updates;
  // Called after every micro-batch with the tokens read so far in this step, and all there are to read.
  std::function<void(int64_t done, int64_t total)> progress;
  // The next update's gradient is corrupted with a NaN, to try the guard.
  bool corrupt_gradient = false;
};

// The model of a KL penalty.
struct Reference {
  Model model;
  std::unique_ptr<LayerShards> shards;  // of its weights, which are then there only while used; null: whole
};
// Divides its weights among the ranks where the policy's are (shard full, no adapters). Before the policy is
// read, so that a rank never has two whole models.
Reference MakeReference(Model model, Shard shard);

class Learner {
 public:
  // Model and reference must outlive this object. The reference is needed where algorithm.kl_coef is not 0,
  // unless the model has adapters: without one their base is the reference. Of the head's rows the first
  // `vocab_size` are tokens.
  Learner(const RlConfig& config, const Model& model, const Reference* reference, int64_t vocab_size);

  // Learns from the experience in step `step`, from 1, and adds the figures. Throws Error after
  // train.max_bad_updates updates in a row that were skipped because a loss or gradient was not finite.
  void Learn(int64_t step, const Experience& experience, const LearnHooks& hooks, StepMetrics* metrics);

  // Its rule is the one in force: under mask.outside_budget, delta is that of the last minibatch.
  const StepLoss& loss() const { return loss_; }
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  BadUpdates& bad_updates() { return bad_updates_; }

 private:
  // The samples of each group that takes part.
  std::vector<std::vector<TrainSample>> MakeGroups(const Experience& experience, StepMetrics* metrics) const;
  void AddAnchors(MinibatchShare* share) const;
  // mask.outside_budget: one more forward tells which delta leaves that share of the minibatch outside.
  void SpendOutsideBudget(std::span<const TrainSample> samples, StepMetrics* metrics);
  void SumOverRanks(StepSums* sums) const;
  void Update(int64_t step, const MinibatchShare& share, const LearnHooks& hooks,
              const DecisionVisitor& visit, StepMetrics* metrics);

  const Ranks ranks_ = Ranks::World();
  const RlConfig& config_;
  const Model& model_;
  const Reference* const reference_;
  const bool base_reference_;  // the model without its adapters
  StepLoss loss_;
  Optimizer optimizer_;
  BadUpdates bad_updates_;
};

}  // namespace augur
