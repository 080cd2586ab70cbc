#include "train/step/learner.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/bytes.h"
#include "kernels/head/decide.h"
#include "mask/outside_budget.h"
#include "model/adapter.h"
#include "ops/typed_data.h"
#include "reward/advantage.h"
#include "rollout/device.h"
#include "train/parallel/stop.h"
#include "train/step/schedule.h"
#include "train/step/token_scores.h"

namespace augur {
namespace {

ReferenceKl Estimator(KlEstimator kind) {
  constexpr ReferenceKl kKinds[] = {ReferenceKl::kK1, ReferenceKl::kK2, ReferenceKl::kK3};
  return kKinds[static_cast<size_t>(kind)];
}

// The rule in force where it decides by response.
std::optional<MaskRule> ResponseRuleOf(const RlConfig& config) {
  const AlgorithmSection& a = config.algorithm;
  if (a.loss == LossKind::kGspo) {
    MaskRule rule = PresetRule("gspo");
    rule.clip_low = a.loss_clip_low;
    rule.clip_high = a.loss_clip_high;
    return rule;
  }
  if (a.UsesMask() && config.mask.rule.scope != Scope::kToken) return config.mask.rule;
  return std::nullopt;
}

// The rule in force token by token: that of the section `mask`, or none where the loss bounds the ratio by
// itself.
MaskRule RuleOf(const RlConfig& config) {
  const AlgorithmSection& a = config.algorithm;
  if (a.UsesMask() && config.mask.rule.scope == Scope::kToken) return config.mask.rule;
  MaskRule rule = PresetRule("none");
  if (a.loss == LossKind::kCispo) rule.ratio_cap = 1 + a.loss_clip_high;
  if (a.loss == LossKind::kTis) rule.ratio_cap = a.tis_cap;
  return rule;
}

StepLoss MakeStepLoss(const RlConfig& config, int64_t vocab_size) {
  const AlgorithmSection& a = config.algorithm;
  const OptimizerFields& o = config.train.optimizer;
  return {.kind = a.loss,
          .terms = {.rule = RuleOf(config),
                    .entropy_bonus = a.entropy_bonus,
                    .kl_coef = a.kl_coef,
                    .reference_kl = a.kl_coef != 0 ? Estimator(a.kl_estimator) : ReferenceKl::kNone},
          .response_rule = ResponseRuleOf(config),
          .tis_cap = a.tis_cap,
          .own_anchor = a.anchor == Anchor::kRecomputed,
          .aggregation = a.aggregation,
          .horizon = a.horizon > 0 ? a.horizon : config.rollout.max_tokens,
          .logits = {.temperature = config.rollout.temperature, .vocab_size = vocab_size, .validate = false},
          .micro_tokens = o.micro_tokens,
          .load_balance_coef = a.load_balance_coef,
          .replay_routing = config.rollout.replay_routing,
          .forward = MakeForwardOptions(config.model.precision, o)};
}

double StepRate(const RlConfig& config, int64_t step) {
  const OptimizerFields& o = config.train.optimizer;
  return LearningRate({o.schedule, o.lr, o.warmup_steps, config.train.steps, o.min_lr_ratio}, step - 1);
}

// Shares of tokens relative to an even load, which is 1: of each expert over all layers, and the extremes of
// any layer.
void AddLoadToMetrics(const StepSums& s, StepMetrics* metrics) {
  const auto layers = s.expert_load.size(0), experts = s.expert_load.size(1);
  const double* load = ConstData<double>(s.expert_load);
  std::vector<double> sums(experts);
  double most = 0, least = std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < layers; ++i) {
    double tokens = 0;
    for (int64_t e = 0; e < experts; ++e) tokens += load[i * experts + e];
    for (int64_t e = 0; e < experts; ++e) {
      const double share = load[i * experts + e] / tokens * static_cast<double>(experts);
      sums[e] += share / static_cast<double>(layers);
      most = std::max(most, share);
      least = std::min(least, share);
    }
  }
  for (int64_t e = 0; e < experts; ++e) metrics->AddMean(fmt::format("router/load/{:03}", e), sums[e], 1);
  metrics->AddMean("router/load_max", most, 1);
  metrics->AddMean("router/load_min", least, 1);
  if (s.load_balance != 0) metrics->AddMean("actor/load_balance_loss", s.load_balance, 1);
}

void AddSumsToMetrics(const StepSums& s, bool has_reference, StepMetrics* metrics) {
  const double tokens = s.sums[kSumTokens];
  const auto mean = [&](const char* name, DecisionSum which) {
    metrics->AddMean(name, s.sums[which], tokens);
  };
  metrics->AddMean("actor/pg_loss", s.sums[kSumLoss], 1);
  mean("actor/pg_clipfrac", kSumMasked);
  mean("actor/ppo_kl", kSumLogRatio);
  mean("actor/entropy", kSumEntropy);
  mean("mask/outside", kSumOutside);
  mean("mask/masked", kSumMasked);
  mean("mask/disagree", kSumDisagree);
  mean("mask/mass_clamped", kSumMassClamped);
  mean("mask/divergence", kSumDivergence);
  mean("mask/ratio", kSumRatio);
  mean("mask/ratio_cut", kSumCutRatio);
  mean("mask/capped", kSumCapped);
  metrics->AddMean("mask/missing", s.sums[kSumMissing], tokens + s.sums[kSumMissing]);
  if (has_reference) metrics->AddMean("actor/kl_loss", s.reference_kl, tokens);
  if (s.expert_load.defined()) AddLoadToMetrics(s, metrics);
}

// How far the policy is from the one that sampled before a step's first update: other arithmetic, older
// weights.
struct Mismatch {
  double difference = 0, largest = 0, kl = 0;  // sums, and the largest |log π - log μ|; KL(μ || π) by k3
  double tokens = 0;

  void Add(const MicroBatch& batch, const PolicyLoss& out) {
    const at::Tensor logprobs = out.policy.sampled().to(at::kFloat).cpu().contiguous();
    const float* now = ConstData<float>(logprobs);
    for (const TrainSample& sample : batch.samples) {
      const RecordedSupport& support = sample.rollout->support;
      for (int64_t t = 0; t < sample.tokens(); ++t) {
        const double x = double{*now++} - support.logprobs[t * support.columns];
        difference += std::abs(x);
        largest = std::max(largest, std::abs(x));
        kl += std::expm1(std::clamp(x, -kLogRatioLimit, kLogRatioLimit)) - x;
      }
      tokens += static_cast<double>(sample.tokens());
    }
  }

  // Of all ranks' tokens.
  void AddTo(const Ranks& ranks, StepMetrics* metrics) {
    double sums[] = {difference, kl, tokens};
    ranks.Sum(sums, std::size(sums));
    difference = sums[0], kl = sums[1], tokens = sums[2];
    largest = ranks.Max(largest);
    metrics->AddMean("mismatch/logp_diff_mean", difference, tokens);
    metrics->AddMax("mismatch/logp_diff_max", largest);
    metrics->AddMean("mismatch/kl", kl, tokens);
  }
};

// Those of all ranks.
std::vector<double> GatherValues(const Ranks& ranks, const std::vector<double>& mine) {
  if (ranks.alone()) return mine;
  ByteWriter out;
  for (const double value : mine) out.Put(value);
  std::vector<double> all;
  for (const std::string& bytes : ranks.GatherBytes(out.bytes())) {
    for (ByteReader in(bytes); !in.done();) all.push_back(in.Next<double>());
  }
  return all;
}

}  // namespace

Reference MakeReference(Model model, Shard shard) {
  Reference reference{std::move(model), nullptr};
  if (shard == Shard::kFull && DividesState(shard)) {
    reference.shards = std::make_unique<LayerShards>(reference.model, CurrentShardGroups().within);
    reference.shards->ReleaseAll();
  }
  return reference;
}

Learner::Learner(const RlConfig& config, const Model& model, const Reference* reference, int64_t vocab_size)
    : config_(config),
      model_(model),
      reference_(reference),
      base_reference_(config.algorithm.kl_coef != 0 && model.lora && reference == nullptr),
      loss_(MakeStepLoss(config, vocab_size)),
      optimizer_(model, MakeOptimizerOptions(config.train.optimizer, config.parallel)),
      bad_updates_(config.train.optimizer.max_bad_updates) {
  if (optimizer_.layer_shards() != nullptr) {
    loss_.forward.store = optimizer_.layer_shards();
    loss_.forward.checkpoint_layers = true;
  }
}

std::vector<std::vector<TrainSample>> Learner::MakeGroups(const Experience& experience,
                                                          StepMetrics* metrics) const {
  const auto group = static_cast<size_t>(config_.rollout.group);
  std::vector<ScoredResponse> scored;
  for (size_t i = 0; i < experience.rollouts.size(); ++i) {
    scored.push_back({experience.rewards[i], static_cast<int64_t>(i / group),
                      static_cast<int64_t>(experience.rollouts[i].tokens.size())});
  }
  const std::vector<double> advantages = ComputeAdvantages(config_.algorithm.advantage, scored);
  // Equal by the verifier's scores: a difference that overlong shaping alone makes teaches nothing of the
  // task.
  for (size_t i = 0; i < scored.size(); ++i) scored[i].reward = experience.scores[i].value;
  const std::vector<bool> equal = InEqualGroup(scored);
  std::vector<std::vector<TrainSample>> groups;
  for (size_t i = 0; i < experience.rollouts.size(); ++i) {
    const Rollout& rollout = experience.rollouts[i];
    if (i % group == 0) groups.emplace_back();
    metrics->AddSpread("critic/advantages", advantages[i]);
    const bool cut = config_.algorithm.drop_truncated && rollout.finish == FinishReason::kLength;
    const bool skipped = config_.algorithm.skip_equal_groups && equal[i];
    if (rollout.finish == FinishReason::kFailed || rollout.sampled_tokens() == 0 || cut || skipped) continue;
    groups.back().push_back({.rollout = &rollout, .advantage = advantages[i]});
  }
  std::erase_if(groups, [](const auto& samples) { return samples.empty(); });
  return groups;
}

void Learner::AddAnchors(MinibatchShare* share) const {
  std::vector<TrainSample>& samples = share->samples;
  if (loss_.own_anchor) {
    std::vector<std::vector<float>> anchors = ScoreSupport(model_, *share, loss_);
    for (size_t i = 0; i < samples.size(); ++i) {
      TrainSample& sample = samples[i];
      sample.anchor = std::move(anchors[i]);
      if (loss_.kind != LossKind::kTis) continue;
      const RecordedSupport& support = sample.rollout->support;
      for (int64_t t = 0; t < sample.tokens(); ++t) {
        const double difference =
            sample.anchor[t * support.columns] - double{support.logprobs[t * support.columns]};
        sample.importance.push_back(static_cast<float>(std::min(std::exp(difference), loss_.tis_cap)));
      }
    }
  }
  if (reference_ != nullptr || base_reference_) {
    std::optional<BaseWeights> base;
    if (base_reference_) base.emplace(model_);
    StepLoss own_routes = loss_;  // the reference is another model, whose router chooses for itself
    own_routes.replay_routing = false;
    const Model& scorer = base ? base->model() : reference_->model;
    own_routes.forward.store = reference_ != nullptr ? reference_->shards.get() : nullptr;
    const std::vector<std::vector<float>> reference = ScoreSupport(scorer, *share, own_routes);
    for (size_t i = 0; i < samples.size(); ++i) {
      const int64_t columns = samples[i].rollout->support.columns;
      for (int64_t t = 0; t < samples[i].tokens(); ++t) {
        samples[i].reference.push_back(reference[i][t * columns]);
      }
    }
  }
}

void Learner::SpendOutsideBudget(std::span<const TrainSample> samples, StepMetrics* metrics) {
  const double budget = config_.mask.rule.outside_budget;
  if (budget == 0 || !config_.algorithm.UsesMask()) return;
  loss_.terms.rule.outside_budget = 0;
  const TokenScores scores = ScoreTokens(model_, samples, {&loss_.terms.rule, 1}, loss_).front();
  std::vector<double> divergences;
  for (size_t i = 0; i < scores.flags.size(); ++i) {
    if (!(scores.flags[i] & kMissing)) divergences.push_back(scores.divergence[i]);
  }
  divergences = GatherValues(ranks_, divergences);
  loss_.terms.rule.delta = DeltaForBudget(std::move(divergences), budget);
  metrics->AddMean("mask/delta", loss_.terms.rule.delta, 1);
}

void Learner::Learn(int64_t step, const Experience& experience, const LearnHooks& hooks,
                    StepMetrics* metrics) {
  std::vector<std::vector<TrainSample>> groups = MakeGroups(experience, metrics);
  const auto size =
      static_cast<size_t>(config_.train.minibatch > 0 ? config_.train.minibatch : config_.rollout.prompts);
  std::vector<MinibatchShare> minibatches;
  auto group = groups.begin();
  for (const size_t count : MinibatchSizes(groups.size(), size)) {
    std::vector<TrainSample> samples;
    for (size_t i = 0; i < count; ++i) std::ranges::move(*group++, std::back_inserter(samples));
    // What has no gradient goes last, and out of the backward.
    std::ranges::stable_partition(samples, [&](const TrainSample& s) { return HasGradient(s, loss_); });
    minibatches.push_back(TakeShare(samples, loss_, ranks_));
  }
  int64_t done = 0, total = 0;  // tokens
  for (const MinibatchShare& minibatch : minibatches) {
    for (const TrainSample& sample : minibatch.samples) total += sample.length() * config_.train.epochs;
  }
  if (hooks.progress) hooks.progress(done, total);
  // By minibatch, so that scoring and learning see the same micro-batches.
  for (MinibatchShare& minibatch : minibatches) AddAnchors(&minibatch);
  if (hooks.several_updates && config_.train.epochs * static_cast<int64_t>(minibatches.size()) > 1) {
    hooks.several_updates();
  }
  for (int64_t epoch = 0; epoch < config_.train.epochs; ++epoch) {
    for (size_t i = 0; i < minibatches.size(); ++i) {
      const bool last = epoch + 1 == config_.train.epochs && i + 1 == minibatches.size();
      const bool first = epoch == 0 && i == 0;
      LearnHooks here = hooks;
      here.corrupt_gradient = hooks.corrupt_gradient && first;
      Mismatch mismatch;
      const DecisionVisitor visit = [&](const MicroBatch& batch, const PolicyLoss& out) {
        if (first) mismatch.Add(batch, out);
        if (last && hooks.last_minibatch) hooks.last_minibatch(batch, out);
        for (const TrainSample& sample : batch.samples) done += sample.length();
        if (hooks.progress) hooks.progress(done, total);
      };
      Update(step, minibatches[i], here, visit, metrics);
      if (first) mismatch.AddTo(ranks_, metrics);
    }
  }
  metrics->Set("actor/lr", StepRate(config_, step));
}

void Learner::SumOverRanks(StepSums* sums) const {
  if (ranks_.alone()) return;
  ranks_.Sum(sums->sums.data(), sums->sums.size());
  ranks_.Sum(&sums->reference_kl, 1);
  ranks_.Sum(&sums->load_balance, 1);
  const int64_t sparse = std::ranges::count(model_.config.sparse, true);
  if (sparse == 0) return;
  if (!sums->expert_load.defined())  // this rank had no micro-batch
    sums->expert_load = at::zeros({sparse, model_.config.moe.experts}, at::kDouble);
  sums->expert_load = ranks_.Sum(sums->expert_load);
}

void Learner::Update(int64_t step, const MinibatchShare& share, const LearnHooks& hooks,
                     const DecisionVisitor& visit, StepMetrics* metrics) {
  CheckStopTogether();
  SpendOutsideBudget(share.samples, metrics);
  StepSums sums = AccumulateShare(model_, optimizer_, share, loss_, visit);
  SumOverRanks(&sums);
  optimizer_.ReduceGradient();
  const bool bad_loss = !std::isfinite(sums.sums[kSumLoss]);
  if (hooks.corrupt_gradient || bad_loss) optimizer_.CorruptGradient();
  if (hooks.before_update) hooks.before_update(share.samples, sums);
  const UpdateResult result = optimizer_.Update(StepRate(config_, step));
  if (hooks.after_update) hooks.after_update(result);
  metrics->AddSum("actor/updates", result.skipped ? 0 : 1);
  metrics->AddSum("actor/skipped_updates", result.skipped ? 1 : 0);
  if (!result.skipped) {
    metrics->AddMean("actor/grad_norm", result.grad_norm, 1);
    AddSumsToMetrics(sums, reference_ || base_reference_, metrics);
  }
  bad_updates_.Count(result.skipped, step);
}

}  // namespace augur
