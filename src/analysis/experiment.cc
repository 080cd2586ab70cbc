#include "analysis/experiment.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "analysis/decompose.h"
#include "analysis/state_copy.h"
#include "base/error.h"
#include "base/random.h"
#include "kernels/head/decide.h"
#include "train/step/token_scores.h"

namespace augur {
namespace {

constexpr const char* kCriteria[] = {"ratio", "predicted-aggregated", "predicted-uniform", "predicted-exact"};
constexpr size_t kCriteriaPerDivergence = std::size(kCriteria);

// For each divergence, in the order of kCriteria.
std::vector<MaskRule> CriterionRules(const MaskRule& configured, std::span<const Proximity> divergences) {
  std::vector<MaskRule> rules;
  for (const Proximity proximity : divergences) {
    MaskRule rule = configured;
    rule.proximity = proximity;
    rule.support = Support::kTopK;
    rule.direction = Direction::kRatio;
    rules.push_back(rule);
    rule.direction = Direction::kPredicted;
    for (const TailModel tail : {TailModel::kAggregated, TailModel::kUniform, TailModel::kExact}) {
      rule.tail = tail;
      rules.push_back(rule);
    }
  }
  return rules;
}

// Everything about all tokens of the batch, in order.
struct Scored {
  std::vector<TokenScores> by_rule;          // CriterionRules
  std::vector<TokenScores> full;             // each divergence over the whole vocabulary, or empty
  std::vector<double> advantage, surrogate;  // weight * ratio * |advantage|
  std::vector<float> weight;
  std::vector<OutsideToken> token;  // place and id
};

class Experiment {
 public:
  Experiment(const ExperimentSetup& setup, const ExperimentBatch& batch)
      : model_(setup.model),
        optimizer_(setup.optimizer),
        setup_(setup),
        batch_(batch),
        rules_(CriterionRules(setup.loss.terms.rule, setup.divergences)),
        start_(setup.model, setup.optimizer) {}

  std::vector<SeedOutcome> Run(int64_t decomposed);

 private:
  struct Realized {
    std::vector<std::vector<float>> divergence;  // each, of every token after the update
  };

  void Score();
  std::vector<TokenScores> ScoreRules(std::span<const TrainSample> samples,
                                      std::span<const MaskRule> rules) const {
    return ScoreTokens(model_, samples, rules, setup_.loss);
  }
  // One criterion's rule of each divergence.
  std::vector<MaskRule> RulesOf(size_t criterion) const {
    std::vector<MaskRule> rules;
    for (size_t i = criterion; i < rules_.size(); i += kCriteriaPerDivergence) rules.push_back(rules_[i]);
    return rules;
  }
  UpdateResult Update(const std::vector<bool>& keep);
  const Realized& Realize(const std::vector<bool>& keep);
  void Decompose(size_t divergence, int64_t count, SeedOutcome* outcome);
  SeedOutcome Outcome(size_t divergence);
  CriterionOutcome Try(const std::string& name, size_t divergence, const std::vector<size_t>& outside,
                       const TokenScores& direction, const std::vector<bool>& keep);
  std::vector<double> Changes(size_t divergence, const std::vector<size_t>& outside,
                              const Realized& realized) const;

  const Model& model_;
  Optimizer& optimizer_;
  const ExperimentSetup& setup_;
  const ExperimentBatch& batch_;
  const std::vector<MaskRule> rules_;
  const StateCopy start_;
  Scored scored_;
  std::map<std::vector<bool>, Realized> tried_;  // criteria that decide alike share an update
  std::optional<UpdateTerms> terms_;             // of the update without a mask
};

void Experiment::Score() {
  scored_.by_rule = ScoreRules(batch_.samples, rules_);
  if (!batch_.full.empty()) {
    scored_.full = ScoreRules(batch_.full, RulesOf(kCriteriaPerDivergence - 1));
  }
  scored_.weight = SampleWeights(setup_.loss.aggregation, batch_.samples, setup_.loss.horizon);
  for (size_t s = 0; s < batch_.samples.size(); ++s) {
    const TrainSample& sample = batch_.samples[s];
    const std::vector<int64_t> places = sample.rollout->SampledPlaces();
    for (int64_t t = 0; t < sample.tokens(); ++t) {
      const size_t i = scored_.advantage.size();
      scored_.advantage.push_back(sample.advantage);
      scored_.surrogate.push_back(scored_.weight[i] * scored_.by_rule[0].ratio[i] *
                                  std::abs(sample.advantage));
      scored_.token.push_back({static_cast<int64_t>(s), t,
                               sample.rollout->tokens[static_cast<size_t>(places[t])], sample.advantage,
                               scored_.by_rule[0].ratio[i], 0});
    }
  }
}

// One update in which the tokens not kept take no part.
UpdateResult Experiment::Update(const std::vector<bool>& keep) {
  std::vector<TrainSample> samples(batch_.samples.begin(), batch_.samples.end());
  size_t i = 0;
  for (TrainSample& sample : samples) {
    sample.importance.resize(static_cast<size_t>(sample.tokens()));
    for (float& factor : sample.importance) factor = keep[i++] ? 1.0f : 0.0f;
  }
  StepLoss unmasked = setup_.loss;
  unmasked.terms.rule = PresetRule("none");
  unmasked.terms.rule.ratio_cap = setup_.loss.terms.rule.ratio_cap;
  AccumulateMinibatch(model_, optimizer_, samples, unmasked);
  optimizer_.ReduceGradient();
  const bool whole = std::ranges::all_of(keep, [](bool kept) { return kept; });
  const at::Tensor gradient = whole ? FlattenByName(model_, optimizer_.gradients()) : at::Tensor();
  const UpdateResult result = optimizer_.Update(setup_.lr);
  if (result.skipped) {
    throw Error("analyze", "the update's gradient is not finite",
                "lower train.lr or take model.precision=fp32");
  }
  if (whole) {
    terms_ = MakeUpdateTerms(start_, optimizer_, setup_.optimizer_options, gradient, result, setup_.lr);
  }
  return result;
}

const Experiment::Realized& Experiment::Realize(const std::vector<bool>& keep) {
  const auto found = tried_.find(keep);
  if (found != tried_.end()) return found->second;
  Update(keep);
  Realized realized;
  for (TokenScores& after : ScoreRules(batch_.samples, RulesOf(0))) {
    realized.divergence.push_back(std::move(after.divergence));
  }
  start_.Restore();
  return tried_[keep] = std::move(realized);
}

std::vector<double> Experiment::Changes(size_t divergence, const std::vector<size_t>& outside,
                                        const Realized& realized) const {
  const std::vector<float>& before = scored_.by_rule[divergence * kCriteriaPerDivergence].divergence;
  std::vector<double> changes;
  for (const size_t i : outside) changes.push_back(double{realized.divergence[divergence][i]} - before[i]);
  return changes;
}

CriterionOutcome Experiment::Try(const std::string& name, size_t divergence,
                                 const std::vector<size_t>& outside, const TokenScores& direction,
                                 const std::vector<bool>& keep) {
  CriterionOutcome outcome;
  outcome.name = name;
  if (outside.empty()) return outcome;
  outcome.change = Changes(divergence, outside, Realize(keep));
  for (const size_t i : outside) {
    outcome.direction.push_back(direction.direction[i]);
    outcome.keep.push_back(keep[i]);
  }
  double kept = 0, all = 0;
  for (size_t i = 0; i < keep.size(); ++i) {
    all += scored_.surrogate[i];
    if (keep[i]) kept += scored_.surrogate[i];
  }
  outcome.surrogate_kept = all > 0 ? kept / all : 1;
  return outcome;
}

SeedOutcome Experiment::Outcome(size_t divergence) {
  const size_t first = divergence * kCriteriaPerDivergence;
  const TokenScores& proximity = scored_.by_rule[first];
  const size_t tokens = proximity.flags.size();
  SeedOutcome outcome;
  outcome.seed = batch_.seed;
  outcome.tokens = static_cast<int64_t>(tokens);
  std::vector<size_t> outside;
  for (size_t i = 0; i < tokens; ++i) {
    if (!(proximity.flags[i] & kOutside)) continue;
    outside.push_back(i);
    outcome.outside.push_back(scored_.token[i]);
    outcome.outside.back().divergence = proximity.divergence[i];
  }
  if (!outside.empty()) {
    outcome.unmasked_change = Changes(divergence, outside, Realize(std::vector<bool>(tokens, true)));
  }
  for (size_t c = 0; c < kCriteriaPerDivergence; ++c) {
    const TokenScores& scores = scored_.by_rule[first + c];
    std::vector<bool> keep;
    for (const uint8_t flags : scores.flags) keep.push_back((flags & (kKept | kMissing)) != 0);
    outcome.criteria.push_back(Try(kCriteria[c], divergence, outside, scores, keep));
  }
  if (!scored_.full.empty()) {
    const TokenScores& scores = scored_.full[divergence];
    std::vector<bool> keep(tokens, true);
    for (const size_t i : outside) keep[i] = !(scored_.advantage[i] * scores.direction[i] > 0);
    outcome.criteria.push_back(Try("predicted-full", divergence, outside, scores, keep));
  }
  return outcome;
}

void Experiment::Decompose(size_t divergence, int64_t count, SeedOutcome* outcome) {
  if (outcome->outside.empty() || count == 0) return;
  outcome->momentum_cosine = terms_->MomentumCosine();
  std::vector<size_t> first_token;  // of each sample, in the batch
  size_t begin = 0;
  for (const TrainSample& sample : batch_.samples) {
    first_token.push_back(begin);
    begin += static_cast<size_t>(sample.tokens());
  }
  std::vector<std::pair<uint32_t, size_t>> drawn;
  for (size_t i = 0; i < outcome->outside.size(); ++i) {
    drawn.emplace_back(Philox::At(static_cast<uint64_t>(batch_.seed), i, divergence).word[0], i);
  }
  std::ranges::sort(drawn);
  drawn.resize(std::min(drawn.size(), static_cast<size_t>(count)));
  for (const auto& [word, i] : drawn) {
    const OutsideToken& token = outcome->outside[i];
    const auto sequence = static_cast<size_t>(token.sequence);
    const size_t place = first_token[sequence] + static_cast<size_t>(token.position);
    ChangeParts parts =
        DecomposeChange(model_, setup_.loss, setup_.divergences[divergence],
                        {&batch_.samples[sequence], token.position, scored_.weight[place]}, *terms_);
    parts.token = i;
    outcome->parts.push_back(parts);
  }
}

std::vector<SeedOutcome> Experiment::Run(int64_t decomposed) {
  Score();
  std::vector<SeedOutcome> outcomes;
  for (size_t d = 0; d < setup_.divergences.size(); ++d) {
    outcomes.push_back(Outcome(d));
    Decompose(d, decomposed, &outcomes.back());
  }
  return outcomes;
}

}  // namespace

std::vector<SeedOutcome> RunExperiment(const ExperimentSetup& setup, const ExperimentBatch& batch,
                                       int64_t decomposed) {
  return Experiment(setup, batch).Run(decomposed);
}

}  // namespace augur
