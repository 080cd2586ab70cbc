#include "train/step/sft_step.h"

#include "train/step/batch.h"
#include "train/step/policy_step.h"

namespace augur {
namespace {

Rollout AsRollout(const SftExample& example) {
  Rollout rollout;
  rollout.prompt_tokens = example.prompt;
  rollout.tokens = example.response;
  rollout.support.columns = 1;
  rollout.support.ids = example.response;
  rollout.support.logprobs.assign(example.response.size(), 0);
  return rollout;
}

// With advantage 0 the policy term vanishes, and the estimate k1 = log π - log ref of the distance to a
// reference of log-prob 0, taken with the factor -1, is the cross-entropy.
StepLoss CrossEntropy(int64_t micro_tokens, const ForwardOptions& forward) {
  return {.terms = {.rule = PresetRule("none"), .kl_coef = -1, .reference_kl = ReferenceKl::kK1},
          .micro_tokens = micro_tokens,
          .forward = forward};
}

}  // namespace

SftSums AccumulateSft(const Model& model, Optimizer& optimizer, std::span<const SftExample> examples,
                      int64_t micro_tokens, const ForwardOptions& forward,
                      const std::function<void(int64_t done, int64_t total)>& progress) {
  std::vector<Rollout> rollouts;
  for (const SftExample& example : examples) rollouts.push_back(AsRollout(example));
  std::vector<TrainSample> samples;
  for (const Rollout& rollout : rollouts) {
    samples.push_back({.rollout = &rollout, .reference = std::vector<float>(rollout.tokens.size())});
  }
  const StepLoss loss = CrossEntropy(micro_tokens, forward);
  const MinibatchShare share = TakeShare(samples, loss, Ranks::World());
  int64_t total = 0;
  for (const TrainSample& sample : share.samples) total += sample.length();
  if (progress) progress(0, total);
  SftSums sums;
  AccumulateShare(model, optimizer, share, loss, [&](const MicroBatch& batch, const PolicyLoss& out) {
    sums.loss -= out.policy.sampled().sum().item().toDouble();
    sums.tokens += batch.targets.size(0);
    for (const TrainSample& sample : batch.samples) sums.packed_tokens += sample.length();
    if (progress) progress(sums.packed_tokens, total);
  });
  double all[] = {sums.loss, static_cast<double>(sums.tokens), static_cast<double>(sums.packed_tokens)};
  Ranks::World().Sum(all, std::size(all));
  sums.loss = all[0] / all[1];
  sums.tokens = static_cast<int64_t>(all[1]);
  sums.packed_tokens = static_cast<int64_t>(all[2]);
  return sums;
}

}  // namespace augur
