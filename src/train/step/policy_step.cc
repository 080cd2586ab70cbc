#include "train/step/policy_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "kernels/head/surrogate_math.h"
#include "mask/response_rules.h"
#include "model/moe.h"
#include "ops/head/head_logits.h"
#include "ops/head/linear_policy_loss.h"
#include "ops/head/log_probs.h"
#include "ops/typed_data.h"
#include "train/parallel/shares.h"
#include "train/parallel/stop.h"

namespace augur {
namespace {

// What the model makes of the supports, without gradient, from the hidden states of a forward.
LogProbs ScoreBatch(const Model& model, const at::Tensor& hidden, const MicroBatch& batch,
                    const StepLoss& loss) {
  const at::NoGradGuard no_grad;
  return ComputeLogProbs({hidden, model.head, {}}, batch.recorded.support_ids, {.logits = loss.logits},
                         InertTokens(batch.recorded, loss.terms));
}

// A rule that decides by response, through plain weights: measured from today's own log-probs every token's
// ratio is 1, and its coefficient becomes a factor of its advantage.
struct ResponseDecisions {
  RecordedTokens recorded;
  std::vector<TokenDecision> tokens;
};

std::vector<double> DoublesOf(const at::Tensor& x) {
  const at::Tensor here = x.to(at::kCPU, at::kDouble).contiguous();
  const double* data = ConstData<double>(here);
  return {data, data + here.numel()};
}

ResponseDecisions DecideBatch(const MicroBatch& batch, const at::Tensor& now, const MaskRule& rule) {
  const std::vector<double> behaviour = DoublesOf(batch.recorded.support_logprobs.select(1, 0)),
                            policy = DoublesOf(now.select(1, 0));
  std::vector<double> advantage = DoublesOf(batch.recorded.advantages);
  std::vector<int64_t> lengths;
  for (const TrainSample& sample : batch.samples) lengths.push_back(sample.tokens());
  ResponseDecisions out{batch.recorded, DecideResponses(rule, {behaviour, policy, advantage, lengths})};
  const at::Tensor scaled = at::empty({now.size(0)}, at::kFloat);
  float* scaled_data = Data<float>(scaled);
  for (size_t t = 0; t < advantage.size(); ++t) {
    scaled_data[t] = static_cast<float>(out.tokens[t].coefficient * advantage[t]);
  }
  out.recorded.support_logprobs = now;
  out.recorded.advantages = scaled.to(now.device());
  return out;
}

// What a response's ratio stands for is the ratio of its tokens under GSPO; elsewhere tokens have their own.
double ReportedRatio(const MaskRule& rule, const TokenDecision& token) {
  return rule.scope == Scope::kGspo ? 1 + token.direction : token.ratio;
}

// Puts the decisions in the place of those of the rule that masks nothing.
void AddDecisions(const MaskRule& rule, const MicroBatch& batch, const ResponseDecisions& decided,
                  StepSums* total) {
  const std::vector<double> behaviour = DoublesOf(batch.recorded.support_logprobs.select(1, 0)),
                            policy = DoublesOf(decided.recorded.support_logprobs.select(1, 0));
  for (size_t t = 0; t < decided.tokens.size(); ++t) {
    const TokenDecision& token = decided.tokens[t];
    if (token.missing) continue;
    const double away = ReportedRatio(rule, token) - 1;
    total->sums[kSumMasked] += !token.keep;
    total->sums[kSumOutside] += token.outside;
    total->sums[kSumDivergence] += token.divergence;
    total->sums[kSumRatio] += away;
    total->sums[kSumCutRatio] += away;
    total->sums[kSumLogRatio] += behaviour[t] - policy[t];
  }
}

// Of KL(π || reference), by the loss's estimator.
double ReferenceKlSum(const PolicyLoss& out, const RecordedTokens& recorded, ReferenceKl kind) {
  if (!recorded.reference_logprobs.defined()) return 0;
  const at::Tensor log_ratio = (recorded.reference_logprobs - out.policy.sampled()).cpu().contiguous();
  double sum = 0;
  for (int64_t t = 0; t < log_ratio.size(0); ++t) sum += EstimateKl(kind, ConstData<float>(log_ratio)[t]);
  return sum;
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

bool BalancesLoad(const Model& model, const StepLoss& loss) {
  return loss.load_balance_coef != 0 && std::ranges::count(model.config.sparse, true) > 0;
}

at::Tensor AddLoadBalance(const Model& model, const ForwardOutput& forward, const StepLoss& loss,
                          const ExpertChoices& choices, const at::Tensor& policy_loss, StepSums* total) {
  const at::Tensor balance = LoadBalancingLoss(model.config.moe, forward.router_logits, choices);
  total->load_balance += balance.item<double>();
  return policy_loss + loss.load_balance_coef * balance;
}

// With the gradients of hidden states and head, which the backward passes on.
PolicyLoss HeadLoss(const Model& model, const at::Tensor& hidden, const MicroBatch& batch,
                    const StepLoss& loss, StepSums* total) {
  const PartUse there(loss.forward.store, HeadPart(model));
  const Head head{hidden, model.head, {}};
  PolicyLoss out;
  if (loss.response_rule) {
    const ResponseDecisions decided =
        DecideBatch(batch, ScoreBatch(model, hidden, batch, loss).support, *loss.response_rule);
    out = ComputeLinearPolicyLoss(loss.terms, head, decided.recorded, {.logits = loss.logits});
    AddSums(out, total);
    AddDecisions(*loss.response_rule, batch, decided, total);
  } else {
    out = ComputeLinearPolicyLoss(loss.terms, head, batch.recorded, {.logits = loss.logits});
    AddSums(out, total);
  }
  return out;
}

// `choices` are those of the whole minibatch.
PolicyLoss MicroStep(const Model& model, const MicroBatch& batch, const StepLoss& loss,
                     const ExpertChoices& choices, StepSums* total) {
  const ForwardOutput forward = Forward(model, batch.packed, OptionsFor(batch, loss));
  if (!forward.routing.empty()) {
    const at::Tensor load = CountLoad(forward.routing, batch.packed.rows, model.config.moe.experts);
    total->expert_load = total->expert_load.defined() ? total->expert_load + load : load;
  }
  const PolicyLoss out = HeadLoss(model, forward.hidden, batch, loss, total);
  at::Tensor whole = out.loss;
  if (BalancesLoad(model, loss)) whole = AddLoadBalance(model, forward, loss, choices, whole, total);
  if (at::GradMode::is_enabled()) torch::autograd::backward({whole});
  total->reference_kl += ReferenceKlSum(out, batch.recorded, loss.terms.reference_kl);
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
  std::vector<int64_t> lengths;
  for (const TrainSample& sample : samples) lengths.push_back(sample.length());
  const std::span<const int64_t> all = lengths;
  std::vector<size_t> cuts = SplitByTokens(all.first(needed), loss.micro_tokens);
  cuts.pop_back();
  for (const size_t cut : SplitByTokens(all.subspan(needed), loss.micro_tokens)) cuts.push_back(needed + cut);
  return cuts;
}

// Micro-batches of this rank that have a backward.
size_t PassesWithGradient(const MinibatchShare& share, const StepLoss& loss) {
  const size_t needed = CountWithGradient(share.samples, loss);
  return static_cast<size_t>(std::ranges::count_if(share.cuts.begin(), share.cuts.end() - 1,
                                                   [&](size_t cut) { return cut < needed; }));
}

// The samples that this rank takes of these, and where its micro-batches begin.
struct SampleShare {
  std::vector<size_t> places;
  std::vector<size_t> cuts;
  size_t passes = 0;  // micro-batches of the rank that has most
};

SampleShare ShareOf(std::span<const TrainSample> samples, int64_t micro_tokens, const Ranks& ranks) {
  std::vector<int64_t> lengths;
  for (const TrainSample& sample : samples) lengths.push_back(sample.length());
  const std::vector<std::vector<size_t>> shares = BalancedShares(lengths, ranks.size());
  SampleShare mine;
  std::vector<int64_t> my_lengths;
  for (size_t r = 0; r < shares.size(); ++r) {
    std::vector<int64_t> here;
    for (const size_t place : shares[r]) here.push_back(lengths[place]);
    std::vector<size_t> cuts = SplitByTokens(here, micro_tokens);
    mine.passes = std::max(mine.passes, cuts.size() - 1);
    if (static_cast<int>(r) == ranks.rank()) {
      mine.places = shares[r];
      mine.cuts = std::move(cuts);
      my_lengths = std::move(here);
    }
  }
  CutFurther(my_lengths, mine.passes, &mine.cuts);
  return mine;
}

// All of a minibatch.
MinibatchShare WholeShare(std::span<const TrainSample> samples, const StepLoss& loss) {
  MinibatchShare share{.samples = {samples.begin(), samples.end()},
                       .weights = SampleWeights(loss.aggregation, samples, loss.horizon),
                       .cuts = MicroBatchCuts(samples, loss),
                       .has_gradient = CountWithGradient(samples, loss) > 0};
  share.gradient_passes = PassesWithGradient(share, loss);
  share.other_passes = share.cuts.size() - 1 - share.gradient_passes;
  return share;
}

// The micro-batch of this number, whose tokens' weights begin at *begin.
MicroBatch MicroBatchOf(const Model& model, const MinibatchShare& share, const StepLoss& loss, size_t number,
                        std::span<const float> weights, size_t* begin) {
  const size_t first = share.cuts[number], end = share.cuts[number + 1];
  const auto part = std::span(share.samples).subspan(first, end - first);
  size_t tokens = 0;
  for (const TrainSample& sample : part) tokens += static_cast<size_t>(sample.tokens());
  *begin += tokens;
  const bool share_prompts = !BalancesLoad(model, loss);  // which counts every token of every sequence
  return MakeMicroBatch(part, weights.subspan(*begin - tokens, tokens), share_prompts,
                        model.embedding.device());
}

// Where layers are sharded every rank must ask for them as often as the others, also in a pass for which it
// has no micro-batch.
void PassIdly(const Model& model, const ForwardOptions& forward, bool backward) {
  if (forward.store != nullptr) PassParts(*forward.store, model, backward);
}

// Calls `visit` with this rank's micro-batches, one in each pass of all ranks, for a forward alone.
void ForEachPass(const Model& model, const MinibatchShare& share, const StepLoss& loss,
                 const std::function<void(const MicroBatch&)>& visit) {
  const std::vector<float> weights = SampleWeights(Aggregation::kTokenSum, share.samples, 0);
  size_t begin = 0;
  for (size_t pass = 0; pass < share.passes(); ++pass) {
    CheckStopTogether();
    if (pass + 1 < share.cuts.size()) {
      visit(MicroBatchOf(model, share, loss, pass, weights, &begin));
    } else {
      PassIdly(model, loss.forward, /*backward=*/false);
    }
  }
}

// The load-balancing loss weighs each expert's probability by its share of the whole minibatch, which takes
// one more forward, without the head. A minibatch that is one micro-batch counts in its own.
ExpertChoices MinibatchChoices(const Model& model, const MinibatchShare& share, const StepLoss& loss) {
  if (!BalancesLoad(model, loss) || (share.ranks.alone() && share.passes() < 2)) return {};
  const at::NoGradGuard no_grad;
  ExpertChoices all{at::zeros({model.config.moe.experts}, at::kDouble)};
  ForEachPass(model, share, loss, [&](const MicroBatch& batch) {
    const ForwardOutput forward = Forward(model, batch.packed, OptionsFor(batch, loss));
    const PartUse head(loss.forward.store, HeadPart(model));
    const ExpertChoices here = CountChoices(model.config.moe, forward.router_logits);
    all.counts += here.counts.cpu();
    all.routings += here.routings;
  });
  share.ranks.Sum(&all.routings, 1);
  all.counts = share.ranks.Sum(all.counts).to(model.embedding.device());
  return all;
}

}  // namespace

bool HasGradient(const TrainSample& sample, const StepLoss& loss) {
  return sample.advantage != 0 || loss.terms.beyond_rule() || loss.load_balance_coef != 0;
}

MinibatchShare TakeShare(std::span<TrainSample> minibatch, const StepLoss& loss, const Ranks& ranks) {
  const std::vector<float> weights = SampleWeights(loss.aggregation, minibatch, loss.horizon);
  const size_t needed = CountWithGradient(minibatch, loss);
  std::vector<size_t> begins;  // of each sample's weights
  size_t tokens = 0;
  for (size_t i = 0; i < minibatch.size(); ++i) {
    minibatch[i].place = i;
    begins.push_back(tokens);
    tokens += static_cast<size_t>(minibatch[i].tokens());
  }
  MinibatchShare share;
  share.ranks = ranks;
  share.has_gradient = needed > 0;
  share.cuts = {0};
  for (const auto& [begin, end] : {std::pair(size_t{0}, needed), {needed, minibatch.size()}}) {
    const SampleShare mine = ShareOf(minibatch.subspan(begin, end - begin), loss.micro_tokens, ranks);
    (begin == 0 && end == needed ? share.gradient_passes : share.other_passes) = mine.passes;
    for (size_t i = 1; i < mine.cuts.size(); ++i) share.cuts.push_back(share.samples.size() + mine.cuts[i]);
    for (const size_t place : mine.places) {
      TrainSample& sample = minibatch[begin + place];
      const float* first = weights.data() + begins[begin + place];
      share.weights.insert(share.weights.end(), first, first + sample.tokens());
      share.samples.push_back(std::move(sample));
    }
  }
  return share;
}

StepSums AccumulateMinibatch(const Model& model, Optimizer& optimizer, std::span<const TrainSample> samples,
                             const StepLoss& loss, const DecisionVisitor& visit) {
  return AccumulateShare(model, optimizer, WholeShare(samples, loss), loss, visit);
}

StepSums AccumulateShare(const Model& model, Optimizer& optimizer, const MinibatchShare& share,
                         const StepLoss& loss, const DecisionVisitor& visit) {
  const ExpertChoices choices = MinibatchChoices(model, share, loss);
  StepSums total;
  size_t next = 0, begin = 0;  // micro-batch, and its first token
  const auto micro_batch = [&] {
    const MicroBatch batch = MicroBatchOf(model, share, loss, next++, share.weights, &begin);
    const PolicyLoss out = MicroStep(model, batch, loss, choices, &total);
    if (at::GradMode::is_enabled()) optimizer.Accumulate();
    if (visit) visit(batch, out);
  };
  const size_t with_gradient = PassesWithGradient(share, loss);
  for (size_t pass = 0; pass < share.gradient_passes; ++pass) {
    CheckStopTogether();
    if (next < with_gradient) {
      const at::AutoGradMode recording(true);
      micro_batch();
    } else {
      PassIdly(model, loss.forward, /*backward=*/true);
      optimizer.PassWithoutGradient();
    }
  }
  const at::NoGradGuard no_grad;  // the rest is there for its figures alone
  for (size_t pass = 0; pass < share.other_passes; ++pass) {
    CheckStopTogether();
    if (next + 1 < share.cuts.size()) {
      micro_batch();
    } else {
      PassIdly(model, loss.forward, /*backward=*/false);
    }
  }
  if (!share.has_gradient) optimizer.AccumulateZeros();
  if (total.expert_load.defined()) total.expert_load = total.expert_load.cpu();
  return total;
}

void ForEachScored(const Model& model, std::span<const TrainSample> samples, const StepLoss& loss,
                   const ScoreVisitor& visit) {
  MinibatchShare share = WholeShare(samples, loss);
  share.ranks = Ranks::World();  // each of which has samples of its own
  share.gradient_passes = 0;
  share.other_passes = static_cast<size_t>(share.ranks.Max(static_cast<double>(share.cuts.size() - 1)));
  ForEachScored(model, share, loss, visit);
}

void ForEachScored(const Model& model, const MinibatchShare& share, const StepLoss& loss,
                   const ScoreVisitor& visit) {
  const at::NoGradGuard no_grad;
  ForEachPass(model, share, loss, [&](const MicroBatch& batch) {
    const at::Tensor hidden = Forward(model, batch.packed, OptionsFor(batch, loss)).hidden;
    const PartUse head(loss.forward.store, HeadPart(model));
    visit(batch, ScoreBatch(model, hidden, batch, loss));
  });
}

std::vector<std::vector<float>> ScoreSupport(const Model& model, const MinibatchShare& share,
                                             const StepLoss& loss) {
  std::vector<std::vector<float>> found;
  ForEachScored(model, share, loss, [&](const MicroBatch& batch, const LogProbs& policy) {
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
