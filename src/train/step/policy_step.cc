#include "train/step/policy_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "kernels/head/decide.h"
#include "model/moe.h"
#include "ops/head_logits.h"
#include "ops/linear_policy_loss.h"
#include "ops/log_probs.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

HeadOptions MakeHeadOptions(const StepLoss& loss) {
  HeadOptions options;
  options.loss.temperature = loss.temperature;
  options.loss.vocab_size = loss.vocab_size;
  options.loss.entropy_bonus = loss.entropy_bonus;
  options.loss.kl_coef = loss.kl_coef;
  options.loss.reference_kl = loss.kl_coef != 0 ? loss.kl : ReferenceKl::kNone;
  options.loss.validate = false;  // the engine of this process recorded the values
  return options;
}

// What the model makes of the supports, without gradient, from the hidden states of a forward.
LogProbs ScoreBatch(const Model& model, const at::Tensor& hidden, const MicroBatch& batch,
                    const StepLoss& loss) {
  const at::NoGradGuard no_grad;
  const HeadOptions options = MakeHeadOptions(loss);
  return ComputeLogProbs({hidden, model.head, {}}, batch.recorded.support_ids, options,
                         InertTokens(batch.recorded, options.loss));
}

MaskRule Unmasked(double ratio_cap) {
  MaskRule rule = PresetRule("none");
  rule.ratio_cap = ratio_cap;
  return rule;
}

MaskRule EffectiveRule(const StepLoss& loss) {
  if (loss.kind == LossKind::kCispo) return Unmasked(1 + loss.clip_high);
  if (loss.kind == LossKind::kTis && !loss.own_anchor) return Unmasked(loss.tis_cap);
  if (loss.kind == LossKind::kGspo) return Unmasked(0);
  return loss.rule;
}

// GSPO through plain weights: measured from today's own log-probs every token's ratio is 1, and the
// response's ratio, or 0 where it is clipped, becomes a factor of its advantage.
struct SequenceRatios {
  RecordedTokens recorded;
  double masked = 0, ratio = 0, log_ratio = 0;  // sums over tokens
};

SequenceRatios MakeSequenceRatios(const MicroBatch& batch, const at::Tensor& now, const StepLoss& loss) {
  const at::Tensor difference =
      (now.select(1, 0) - batch.recorded.support_logprobs.select(1, 0)).cpu().contiguous();
  const at::Tensor advantages = batch.recorded.advantages.cpu().clone();
  const float* x = ConstData<float>(difference);
  float* advantage = Data<float>(advantages);
  SequenceRatios out;
  for (const TrainSample& sample : batch.samples) {
    const auto tokens = static_cast<double>(sample.tokens());
    double sum = 0;
    for (int64_t t = 0; t < sample.tokens(); ++t) sum += x[t];
    const double ratio = std::exp(std::clamp(sum / tokens, -kLogRatioLimit, kLogRatioLimit));
    const bool clipped = sample.advantage > 0 ? ratio > 1 + loss.clip_high : ratio < 1 - loss.clip_low;
    for (int64_t t = 0; t < sample.tokens(); ++t) {
      advantage[t] = clipped || sample.advantage == 0 ? 0 : static_cast<float>(ratio * sample.advantage);
    }
    out.masked += clipped && sample.advantage != 0 ? tokens : 0;
    out.ratio += ratio * tokens;
    out.log_ratio -= sum;
    x += sample.tokens();
    advantage += sample.tokens();
  }
  out.recorded = batch.recorded;
  out.recorded.support_logprobs = now;
  out.recorded.advantages = advantages.to(now.device());
  return out;
}

// The k3 estimate of KL(π || reference), whatever estimator the loss takes.
double ReferenceKlSum(const PolicyLoss& out, const RecordedTokens& recorded) {
  if (!recorded.reference_logprobs.defined()) return 0;
  const at::Tensor x = recorded.reference_logprobs - out.policy.sampled();
  return (x.clamp(-kLogRatioLimit, kLogRatioLimit).exp() - x - 1).sum().item<double>();
}

void AddSums(const PolicyLoss& out, StepSums* total) {
  const at::Tensor sums = out.sums.cpu();
  for (int i = 0; i < kDecisionSums; ++i) total->sums[i] += ConstData<double>(sums)[i];
}

ForwardOptions OptionsFor(const MicroBatch& batch, const StepLoss& loss) {
  ForwardOptions options = loss.forward;
  if (loss.replay_routing && !batch.routing.empty()) options.replay = &batch.routing;
  return options;
}

// How many of the rows each expert computed, by layer; stays on the device.
at::Tensor CountLoad(const Routing& routing, const at::Tensor& rows, int64_t experts) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> layers;
  for (const at::Tensor& chosen : routing) {
    const at::Tensor flat = chosen.index_select(0, rows).flatten();
    const auto type = flat.options().dtype(at::kDouble);  // sums of ones are exact in any order
    layers.push_back(at::zeros({experts}, type).scatter_add_(0, flat, at::ones(flat.sizes(), type)));
  }
  return at::stack(layers);
}

// The minibatch's load-balancing loss is the mean of the micro-batches', by their share of its tokens.
at::Tensor AddLoadBalance(const Model& model, const ForwardOutput& forward, const StepLoss& loss,
                          double share, const at::Tensor& policy_loss, StepSums* total) {
  const at::Tensor balance = LoadBalancingLoss(model.config.moe, forward.router_logits) * share;
  total->load_balance += balance.item<double>();
  return policy_loss + loss.load_balance_coef * balance;
}

// `share` of the minibatch's tokens are in this micro-batch.
PolicyLoss MicroStep(const Model& model, const MicroBatch& batch, const StepLoss& loss, double share,
                     StepSums* total) {
  const ForwardOutput forward = Forward(model, batch.packed, OptionsFor(batch, loss));
  const at::Tensor& hidden = forward.hidden;
  if (!forward.routing.empty()) {
    const at::Tensor load = CountLoad(forward.routing, batch.packed.rows, model.config.moe.experts);
    total->expert_load = total->expert_load.defined() ? total->expert_load + load : load;
  }
  const Head head{hidden, model.head, {}};
  PolicyLoss out;
  if (loss.kind == LossKind::kGspo) {
    const SequenceRatios ratios =
        MakeSequenceRatios(batch, ScoreBatch(model, hidden, batch, loss).support, loss);
    out = ComputeLinearPolicyLoss(EffectiveRule(loss), head, ratios.recorded, MakeHeadOptions(loss));
    AddSums(out, total);
    total->sums[kSumMasked] += ratios.masked;
    total->sums[kSumOutside] += ratios.masked;
    const auto tokens = static_cast<double>(batch.targets.size(0));
    total->sums[kSumRatio] += ratios.ratio - tokens;  // replaces the ones that stand for it
    total->sums[kSumLogRatio] += ratios.log_ratio;
  } else {
    out = ComputeLinearPolicyLoss(EffectiveRule(loss), head, batch.recorded, MakeHeadOptions(loss));
    AddSums(out, total);
  }
  at::Tensor whole = out.loss;
  if (loss.load_balance_coef != 0 && !forward.router_logits.empty()) {
    whole = AddLoadBalance(model, forward, loss, share, whole, total);
  }
  if (at::GradMode::is_enabled()) torch::autograd::backward({whole});
  total->reference_kl += ReferenceKlSum(out, batch.recorded);
  return out;
}

// How many of the samples the backward needs: those up to the last that can have a gradient.
size_t CountWithGradient(std::span<const TrainSample> samples, const StepLoss& loss) {
  size_t count = samples.size();
  while (count > 0 && !HasGradient(samples[count - 1], loss)) --count;
  return count;
}

// Where micro-batches begin, and the end: those that the backward needs first, the rest apart.
std::vector<size_t> MicroBatchCuts(std::span<const TrainSample> samples, const StepLoss& loss) {
  const size_t needed = CountWithGradient(samples, loss);
  std::vector<size_t> cuts = SplitByTokens(samples.first(needed), loss.micro_tokens);
  cuts.pop_back();
  for (const size_t cut : SplitByTokens(samples.subspan(needed), loss.micro_tokens))
    cuts.push_back(needed + cut);
  return cuts;
}

}  // namespace

bool HasGradient(const TrainSample& sample, const StepLoss& loss) {
  return sample.advantage != 0 || loss.entropy_bonus != 0 || loss.kl_coef != 0 || loss.load_balance_coef != 0;
}

StepSums AccumulateMinibatch(const Model& model, Optimizer& optimizer, std::span<const TrainSample> samples,
                             const StepLoss& loss, const DecisionVisitor& visit) {
  const std::vector<float> weights = SampleWeights(loss.aggregation, samples, loss.horizon);
  const size_t needed = CountWithGradient(samples, loss);
  const std::vector<size_t> cuts = MicroBatchCuts(samples, loss);
  StepSums total;
  double all_tokens = 0;
  for (const TrainSample& sample : samples) all_tokens += static_cast<double>(sample.length());
  const float* weight = weights.data();
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const at::AutoGradMode recording(cuts[i] < needed);  // the rest is there for its figures alone
    const auto part = samples.subspan(cuts[i], cuts[i + 1] - cuts[i]);
    size_t tokens = 0;
    for (const TrainSample& sample : part) tokens += static_cast<size_t>(sample.tokens());
    const MicroBatch batch = MakeMicroBatch(part, {weight, tokens}, model.embedding.device());
    weight += tokens;
    const PolicyLoss out =
        MicroStep(model, batch, loss, static_cast<double>(batch.packed.tokens.size(0)) / all_tokens, &total);
    optimizer.Accumulate();
    if (visit) visit(batch, out);
  }
  if (needed == 0) optimizer.AccumulateZeros();
  if (total.expert_load.defined()) total.expert_load = total.expert_load.cpu();
  return total;
}

void ForEachScored(const Model& model, std::span<const TrainSample> samples, const StepLoss& loss,
                   const ScoreVisitor& visit) {
  const at::NoGradGuard no_grad;
  const std::vector<size_t> cuts = MicroBatchCuts(samples, loss);
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const auto part = samples.subspan(cuts[i], cuts[i + 1] - cuts[i]);
    const std::vector<float> weights = SampleWeights(Aggregation::kTokenSum, part, 0);
    const MicroBatch batch = MakeMicroBatch(part, weights, model.embedding.device());
    const at::Tensor hidden = Forward(model, batch.packed, OptionsFor(batch, loss)).hidden;
    visit(batch, ScoreBatch(model, hidden, batch, loss));
  }
}

std::vector<std::vector<float>> ScoreSupport(const Model& model, std::span<const TrainSample> samples,
                                             const StepLoss& loss) {
  std::vector<std::vector<float>> found;
  ForEachScored(model, samples, loss, [&](const MicroBatch& batch, const LogProbs& policy) {
    const at::Tensor support = policy.support.cpu().contiguous();
    const float* row = ConstData<float>(support);
    for (const TrainSample& sample : batch.samples) {
      const int64_t count = sample.tokens() * sample.rollout->support.columns;
      found.emplace_back(row, row + count);
      row += count;
    }
  });
  return found;
}

}  // namespace augur
