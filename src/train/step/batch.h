// From responses to packed micro-batches: whole sequences one after the other, without padding, as many as a
// token budget allows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "mask/aggregation.h"
#include "model/forward.h"
#include "ops/head/policy_loss.h"
#include "rollout/rollout.h"

namespace augur {

// A response ready for training. The rollout must outlive it, have a recorded support and not be empty.
struct TrainSample {
  const Rollout* rollout = nullptr;
  double advantage = 0;
  // [tokens, columns] log-probs to measure from in place of the recorded ones; empty: the recorded ones.
  std::vector<float> anchor = {};
  // [tokens] log-probs of the reference model; empty: none.
  std::vector<float> reference = {};
  // [tokens] factors of the advantage, and so of the policy gradient alone; empty: 1.
  std::vector<float> importance = {};
  size_t place = 0;  // within its minibatch, whichever rank learns from it

  // Those that are learned from: the sampled ones. All that is said of tokens here is of these.
  int64_t tokens() const { return rollout->sampled_tokens(); }
  // Tokens the model reads: prompt and response but for the last, after which nothing is predicted.
  int64_t length() const {
    return static_cast<int64_t>(rollout->tokens.size() + rollout->prompt_tokens.size()) - 1;
  }
};

struct MicroBatch {
  std::span<const TrainSample> samples;
  PackedBatch packed;       // N tokens; its rows [R] predict the sampled tokens
  at::Tensor targets;       // [R] int64: those tokens
  RecordedTokens recorded;  // [R]
  Routing routing;          // by sparse layer [N, experts_per_token]; empty where none was recorded
};

// The weight of every response token of the minibatch, sample after sample.
std::vector<float> SampleWeights(Aggregation aggregation, std::span<const TrainSample> samples,
                                 int64_t horizon);

// How many groups each minibatch has, at most `most`: as few minibatches as that allows, of near-equal size,
// so that no update is made from a remainder. 49 groups at 16 become 13, 12, 12, 12.
std::vector<size_t> MinibatchSizes(size_t groups, size_t most);

// Where to cut samples of these lengths: indices of the first of each micro-batch, and the end. A micro-batch
// has at most `micro_tokens` tokens unless a single sequence is longer.
std::vector<size_t> SplitByTokens(std::span<const int64_t> lengths, int64_t micro_tokens);

// `weights` are those of these samples alone. With `share_prompts` a prompt that several of them have is
// packed once, where that spares an eighth of the rows.
MicroBatch MakeMicroBatch(std::span<const TrainSample> samples, std::span<const float> weights,
                          bool share_prompts, at::Device device);

}  // namespace augur
