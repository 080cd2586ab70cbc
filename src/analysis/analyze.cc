#include "analysis/analyze.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "analysis/experiment.h"
#include "analysis/full_support.h"
#include "analysis/inputs.h"
#include "analysis/seed_file.h"
#include "analysis/state_copy.h"
#include "base/checksum.h"
#include "base/claim.h"
#include "base/error.h"
#include "base/round_up.h"
#include "config/write.h"
#include "mask/rule.h"
#include "model/load.h"
#include "reward/advantage.h"
#include "rollout/device.h"
#include "train/step/experience.h"
#include "train/step/learner.h"
#include "train/step/schedule.h"

namespace augur {
namespace {

// Log-probs of the whole vocabulary take 8 bytes an entry; no more than this many are kept.
constexpr int64_t kMostFullEntries = int64_t{1} << 26;

std::vector<Proximity> DivergencesOf(const AnalyzeOptions& options) {
  if (!options.divergences.empty()) return options.divergences;
  return {std::begin(kDivergences), std::end(kDivergences)};
}

// Everything one seed needs, made once; the model goes back to its beginning before each.
class Laboratory {
 public:
  Laboratory(const RlConfig& config, const AnalyzeOptions& options)
      : config_(config),
        options_(options),
        divergences_(DivergencesOf(options)),
        text_(ModelText::FromDirectory(config.model.path, config.data)),
        prompts_(LoadPrompts(text_, DataWithinContext(config), config.data.train,
                             {.keep_columns = !config.reward.python.empty()})),
        scorer_(MakeScorer(config.reward)),
        model_(LoadModel(config.model.path, TrainerType(config.model.precision), RunDevice(config.run))),
        learner_(config_, model_, nullptr, text_.vocab_size()),
        start_(model_, learner_.optimizer()),
        engine_(model_, MakeEngineOptions(config, model_.embedding.device())) {
    const int64_t groups =
        RoundUp((options.sequences + config.rollout.group - 1) / config.rollout.group, options.preceding + 1);
    sequences_ = groups * config.rollout.group;
    const int64_t vocab_size = learner_.loss().logits.vocab_size;
    full_ = sequences_ * config.rollout.max_tokens * vocab_size <= kMostFullEntries &&
            config.rollout.support < vocab_size - 1;
  }

  SeedRecord Run(int64_t seed);

 private:
  Experience WarmUp(int64_t steps);
  Experience Measured(int64_t step, uint64_t* position);
  std::vector<TrainSample> Samples(const Experience& experience) const;

  RlConfig config_;
  const AnalyzeOptions options_;
  const std::vector<Proximity> divergences_;
  const ModelText text_;
  const TokenizedPrompts prompts_;
  const Scorer scorer_;
  const Model model_;
  Learner learner_;
  const StateCopy start_;
  Engine engine_;
  int64_t sequences_ = 0;
  bool full_ = false;
};

Experience Laboratory::Measured(int64_t step, uint64_t* position) {
  RlConfig wide = config_;
  wide.rollout.prompts = sequences_ / config_.rollout.group;
  wide.algorithm.dynamic_sampling = false;
  if (full_) wide.rollout.support = learner_.loss().logits.vocab_size - 1;
  return ExperienceMaker(wide, text_, prompts_, engine_, scorer_).Make(step, position);
}

std::vector<TrainSample> Laboratory::Samples(const Experience& experience) const {
  std::vector<ScoredResponse> scored;
  for (size_t i = 0; i < experience.rollouts.size(); ++i) {
    scored.push_back({experience.rewards[i], static_cast<int64_t>(i) / config_.rollout.group,
                      static_cast<int64_t>(experience.rollouts[i].tokens.size())});
  }
  const std::vector<double> advantages = ComputeAdvantages(config_.algorithm.advantage, scored);
  std::vector<TrainSample> samples;
  for (size_t i = 0; i < experience.rollouts.size(); ++i) {
    const Rollout& rollout = experience.rollouts[i];
    if (rollout.finish == FinishReason::kFailed || rollout.sampled_tokens() == 0) continue;
    samples.push_back({.rollout = &rollout, .advantage = advantages[i]});
  }
  return samples;
}

// Some steps of training as configured, and among them the batch to be measured, sampled from weights that
// are rollout.staleness steps old when it is learned from.
Experience Laboratory::WarmUp(int64_t steps) {
  ExperienceMaker maker(config_, text_, prompts_, engine_, scorer_);
  uint64_t position = 0;
  std::optional<Experience> measured;
  StepMetrics ignored;
  for (int64_t step = 1; step <= steps; ++step) {
    if (step == steps - config_.rollout.staleness + 1) measured = Measured(steps + 1, &position);
    learner_.Learn(step, maker.Make(step, &position), {}, &ignored);
    engine_.UpdateWeights(model_, step);
  }
  return measured ? std::move(*measured) : Measured(steps + 1, &position);
}

SeedRecord Laboratory::Run(int64_t seed) {
  start_.Restore();
  engine_.UpdateWeights(model_, 0);
  config_.run.seed = seed;
  const int64_t warmup = std::max(options_.warmup, config_.rollout.staleness);
  const Experience whole = WarmUp(warmup);
  Experience cut = whole;
  if (full_) {
    for (Rollout& rollout : cut.rollouts)
      rollout.support = KeepTopK(rollout.support, config_.rollout.support);
  }
  const std::vector<TrainSample> samples = Samples(cut);
  const std::vector<TrainSample> full = full_ ? Samples(whole) : std::vector<TrainSample>();
  const auto part = static_cast<int64_t>(samples.size()) / (options_.preceding + 1);
  const OptimizerFields& o = config_.train.optimizer;
  const double lr =
      LearningRate({o.schedule, o.lr, o.warmup_steps, config_.train.steps, o.min_lr_ratio}, warmup);
  for (int64_t i = 0; i < options_.preceding; ++i) {
    const auto minibatch =
        std::span(samples).subspan(static_cast<size_t>(i * part), static_cast<size_t>(part));
    AccumulateMinibatch(model_, learner_.optimizer(), minibatch, learner_.loss());
    learner_.optimizer().Update(lr);
  }
  const auto learned = static_cast<size_t>(part * options_.preceding);
  const ExperimentSetup setup{model_, learner_.optimizer(), learner_.loss(), MakeOptimizerOptions(o),
                              lr,     divergences_};
  const ExperimentBatch batch{std::span(samples).subspan(learned),
                              std::span(full).subspan(full_ ? learned : 0), seed};
  return {sequences_, full_, RunExperiment(setup, batch, options_.decomposed)};
}

std::string WhatToChange(const RlConfig& config, const AnalyzeOptions& options) {
  return fmt::format(
      "lower mask.delta, or bring the policies further apart: model.precision=fp8_rollout, a larger train.lr "
      "(now {}), --warmup (now {}), --preceding (now {}), --sequences (now {}) or rollout.staleness (now {})",
      config.train.optimizer.lr, options.warmup, options.preceding, options.sequences,
      config.rollout.staleness);
}

int64_t CountOutside(const SeedRecord& record) {
  int64_t outside = 0;
  for (const SeedOutcome& outcome : record.outcomes) outside += static_cast<int64_t>(outcome.outside.size());
  return outside;
}

}  // namespace

void CheckAnalyzable(const RlConfig& config) {
  if (config.algorithm.loss != LossKind::kMasked) {
    throw Error("algorithm.loss", "analyze compares masks, and this loss has none",
                "set algorithm.loss=masked");
  }
  const MaskRule& rule = config.mask.rule;
  if (rule.scope != Scope::kToken || rule.weight != Weight::kRatio || rule.penalty != Penalty::kNone ||
      rule.direction == Direction::kSecondOrder) {
    throw Error("mask", "analyze compares masks token by token, and this rule does more",
                "set mask=predictive-kl-exact or another rule that masks");
  }
  if (config.algorithm.kl_coef != 0 || config.algorithm.entropy_bonus != 0) {
    throw Error("algorithm", "analyze needs a loss that is the masked surrogate alone",
                "set algorithm.kl_coef=0 and algorithm.entropy_bonus=0");
  }
  if (config.lora.rank > 0 || !config.lora.adapter.empty()) {
    throw Error("lora", "analyze follows updates of all weights", "leave out lora.rank and lora.adapter");
  }
  if (config.algorithm.anchor != Anchor::kRollout) {
    throw Error("algorithm.anchor", "analyze measures from the log-probs that the rollouts recorded",
                "set algorithm.anchor=rollout");
  }
  if (config.mask.rule.outside_budget > 0) {
    throw Error("mask.outside_budget", "analyze compares masks at one delta", "set mask.outside_budget=0");
  }
  if (config.rollout.support < 1) {
    throw Error("rollout.support", "is 0: there is no divergence without a recorded support",
                "set rollout.support=20");
  }
}

std::filesystem::path SeedFolder(const RlConfig& config, const AnalyzeOptions& options) {
  RlConfig decisive = config;
  decisive.run = {};
  decisive.run.device = config.run.device;
  decisive.log = {};
  decisive.eval = {};
  std::string text = ToYaml(FieldsOf(decisive));
  for (const FileFingerprint& file : InputFiles(decisive)) {
    text += fmt::format("{} {}\n", file.size, file.checksum);
  }
  text +=
      fmt::format("{} {} {} {}", options.sequences, options.warmup, options.preceding, options.decomposed);
  for (const Proximity divergence : DivergencesOf(options)) text += fmt::format(" {}", NameOf(divergence));
  const uint64_t sum = Checksum(std::as_bytes(std::span(text)));
  return std::filesystem::path(config.run.dir) / "seeds" / fmt::format("{:016x}", sum);
}

void MeasureSeeds(const RlConfig& config, const AnalyzeOptions& options, const std::filesystem::path& folder,
                  const std::function<void(int64_t outside)>& progress) {
  CheckAnalyzable(config);
  SetThreads(config.run.threads);
  std::optional<Laboratory> laboratory;
  int64_t outside = 0;
  for (int64_t i = 0; i < options.seeds; ++i) {
    const int64_t seed = config.run.seed + i;
    const std::filesystem::path file = SeedFile(folder, seed);
    if (std::filesystem::exists(file)) continue;
    const std::unique_ptr<Claim> claim = Claim::Take(folder / "claims", fmt::format("seed-{}", seed));
    if (!claim || std::filesystem::exists(file)) continue;
    if (!laboratory) laboratory.emplace(config, options);
    const SeedRecord record = laboratory->Run(seed);
    WriteSeedRecord(folder, seed, record);
    outside += CountOutside(record);
    progress(outside);
  }
}

int64_t CountMeasured(const RlConfig& config, const AnalyzeOptions& options,
                      const std::filesystem::path& folder) {
  int64_t measured = 0;
  for (int64_t i = 0; i < options.seeds; ++i) {
    measured += std::filesystem::exists(SeedFile(folder, config.run.seed + i));
  }
  return measured;
}

AnalyzeResult SummarizeSeeds(const RlConfig& config, const AnalyzeOptions& options,
                             const std::filesystem::path& folder) {
  const std::vector<Proximity> divergences = DivergencesOf(options);
  std::vector<std::vector<SeedOutcome>> by_divergence(divergences.size());
  int64_t outside = 0, sequences = 0;
  bool full = false;
  Json seeds = Json::array();
  for (int64_t i = 0; i < options.seeds; ++i) {
    const int64_t seed = config.run.seed + i;
    if (!std::filesystem::exists(SeedFile(folder, seed))) continue;  // another process is at it, or was
    SeedRecord record = ReadSeedRecord(folder, seed);
    seeds.push_back(seed);
    outside += CountOutside(record);
    sequences = record.sequences;
    full = record.full_vocabulary;
    for (size_t d = 0; d < divergences.size(); ++d) {
      by_divergence[d].push_back(std::move(record.outcomes.at(d)));
    }
  }
  if (seeds.empty()) {
    throw Error("analyze",
                "no seed has been measured yet: other processes are at them, or ended before they were done",
                "run the same command again; the seeds of a process that ended are free after two minutes at "
                "the latest");
  }
  if (outside == 0) {
    throw Error("analyze",
                fmt::format("no token is outside: every divergence is within mask.delta = {}",
                            config.mask.rule.delta),
                WhatToChange(config, options));
  }
  AnalyzeResult result;
  Json summaries = Json::array();
  for (size_t d = 0; d < divergences.size(); ++d) {
    const std::string_view name = NameOf(divergences[d]);
    summaries.push_back(SummarizeStudy(name, config.mask.rule.delta, by_divergence[d]));
    result.csv += StudyCsv(name, by_divergence[d], d == 0);
  }
  result.analysis = {{"kind", "analysis"},
                     {"seeds", std::move(seeds)},
                     {"sequences", sequences},
                     {"measured_sequences", sequences / (options.preceding + 1)},
                     {"warmup", options.warmup},
                     {"preceding", options.preceding},
                     {"staleness", config.rollout.staleness},
                     {"full_vocabulary", full},
                     {"divergences", std::move(summaries)}};
  return result;
}

}  // namespace augur
