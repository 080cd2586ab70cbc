// What masks think of response tokens, without learning from them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mask/rule.h"
#include "model/model.h"
#include "train/step/policy_step.h"

namespace augur {

// One entry per response token, sample after sample.
struct TokenScores {
  std::vector<float> ratio, divergence, direction;
  std::vector<uint8_t> flags;  // bits of DecisionFlag
};

// The decisions of each rule under the model as it is: one forward and one pass over the head for all of
// them. Of the loss, what log-probs and micro-batches depend on is read: temperature, vocab_size,
// micro_tokens, replay_routing, forward, and the coefficients that give a sample without an advantage a
// gradient.
std::vector<TokenScores> ScoreTokens(const Model& model, std::span<const TrainSample> samples,
                                     std::span<const MaskRule> rules, const StepLoss& loss);

}  // namespace augur
