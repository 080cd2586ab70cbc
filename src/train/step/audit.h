// Was the mask right? After an update the tokens that were outside the trust region are scored again.
#pragma once

#include <cstdint>
#include <vector>

#include "mask/rule.h"
#include "metrics/step_metrics.h"
#include "model/model.h"
#include "train/step/policy_step.h"

namespace augur {

class Audit {
 public:
  // Both must outlive this object, and so must the rollouts of the minibatch.
  Audit(const Model& model, const StepLoss& loss);

  // For LearnHooks::last_minibatch: notes the outside tokens of a micro-batch before the update.
  void See(const MicroBatch& batch, const PolicyLoss& out);

  // After the update. Of the tokens that were outside:
  //   audit/unsafe_keep       share of the kept ones whose divergence grew
  //   audit/contraction       share of the kept ones whose divergence fell
  //   audit/delta_divergence  mean change of the divergence, kept and masked
  //   audit/disagree          share on which ratio and prediction decide differently
  // and audit/outside, how many there were; timing_s/audit, what this cost. Only the sequences that hold
  // outside tokens are scored.
  void Finish(StepMetrics* metrics);

 private:
  struct Token {
    size_t place = 0;  // among the tokens of samples_
    double divergence = 0;
    bool keep = false, disagree = false;
  };

  const Model& model_;
  const StepLoss& loss_;
  std::vector<TrainSample> samples_;  // those with outside tokens
  size_t sample_tokens_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace augur
