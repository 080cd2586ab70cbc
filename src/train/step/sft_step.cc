#include "train/step/sft_step.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include "ops/linear_policy_loss.h"
#include "train/parallel/stop.h"
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
PolicyLoss CrossEntropy(const Model& model, const MicroBatch& batch, const ForwardOptions& forward) {
  const at::Tensor hidden = Forward(model, batch.packed, forward).hidden;
  const PartUse head(forward.store, HeadPart(model));
  RecordedTokens recorded = batch.recorded;
  recorded.reference_logprobs = at::zeros({hidden.size(0)}, recorded.advantages.options());
  HeadOptions options;
  options.loss.vocab_size = model.config.vocab_size;
  options.loss.reference_kl = ReferenceKl::kK1;
  options.loss.kl_coef = -1;
  options.loss.validate = false;
  return ComputeLinearPolicyLoss(PresetRule("none"), {hidden, model.head, {}}, recorded, options);
}

}  // namespace

SftSums AccumulateSft(const Model& model, Optimizer& optimizer, std::span<const SftExample> examples,
                      int64_t micro_tokens, const ForwardOptions& forward,
                      const std::function<void(int64_t done, int64_t total)>& progress) {
  std::vector<Rollout> rollouts;
  for (const SftExample& example : examples) rollouts.push_back(AsRollout(example));
  std::vector<TrainSample> samples;
  for (const Rollout& rollout : rollouts) samples.push_back({.rollout = &rollout});
  StepLoss loss;  // of which every sample takes part
  loss.micro_tokens = micro_tokens;
  loss.entropy_bonus = 1;
  const MinibatchShare share = TakeShare(samples, loss, Ranks::World());
  SftSums sums;
  int64_t total = 0;
  for (const TrainSample& sample : share.samples) total += sample.length();
  if (progress) progress(0, total);
  const float* weight = share.weights.data();
  for (size_t i = 0; i < share.gradient_passes; ++i) {
    CheckStopTogether();
    if (i + 1 >= share.cuts.size()) {
      PassIdly(model, forward, /*backward=*/true);
      optimizer.PassWithoutGradient();
      continue;
    }
    const auto part = std::span(share.samples).subspan(share.cuts[i], share.cuts[i + 1] - share.cuts[i]);
    size_t tokens = 0;
    for (const TrainSample& sample : part) tokens += static_cast<size_t>(sample.tokens());
    const MicroBatch batch = MakeMicroBatch(part, {weight, tokens}, model.embedding.device());
    weight += tokens;
    const PolicyLoss out = CrossEntropy(model, batch, forward);
    torch::autograd::backward({out.loss});
    optimizer.Accumulate();
    sums.loss -= out.policy.sampled().sum().item().toDouble();
    sums.tokens += static_cast<int64_t>(tokens);
    sums.packed_tokens += batch.packed.tokens.size(0);
    if (progress) progress(sums.packed_tokens, total);
  }
  double all[] = {sums.loss, static_cast<double>(sums.tokens), static_cast<double>(sums.packed_tokens)};
  Ranks::World().Sum(all, std::size(all));
  sums.loss = all[0] / all[1];
  sums.tokens = static_cast<int64_t>(all[1]);
  sums.packed_tokens = static_cast<int64_t>(all[2]);
  return sums;
}

}  // namespace augur
