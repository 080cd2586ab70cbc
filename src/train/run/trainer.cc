#include "train/run/trainer.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cmath>
#include <future>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/run_lock.h"
#include "base/stop_signals.h"
#include "config/write.h"
#include "metrics/metrics_file.h"
#include "metrics/progress.h"
#include "metrics/tensorboard.h"
#include "model/load.h"
#include "model/save.h"
#include "rollout/device.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/run_state.h"
#include "train/run/evaluate.h"
#include "train/run/overlap.h"
#include "train/run/resume.h"
#include "train/step/audit.h"
#include "train/step/decision_log.h"
#include "train/step/step_dump.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

std::optional<Model> LoadReference(const RlConfig& config, at::Device device) {
  if (config.algorithm.kl_coef == 0) return std::nullopt;
  const std::string& path = config.model.reference.empty() ? config.model.path : config.model.reference;
  const int64_t tokens = ReadModelConfig(config.model.path).vocab_size;
  if (const int64_t others = ReadModelConfig(path).vocab_size; others != tokens) {
    throw Error("model.reference",
                fmt::format("{} has a vocabulary of {} tokens, the model one of {}", path, others, tokens),
                "give a model with the same tokenizer");
  }
  return LoadModel(path, TrainerType(config.model.precision), device);
}

double PeakMemoryGib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

// One run from start, or resumption, to end.
class Run {
 public:
  Run(const RlConfig& config, const TrainOptions& options);
  TrainOutcome ToEnd();

 private:
  void Resume();
  void Step();
  Experience NextExperience();
  void TakeComing(StepMetrics* metrics);
  void Learn(const Experience& experience, StepMetrics* metrics);
  void AddRolloutFigures(const Experience& experience, StepMetrics* metrics) const;
  void EvaluateNow(Metrics* metrics);
  bool EvaluationDue() const;
  void Log(const Metrics& metrics);
  void Save();
  void Finish();
  std::string Figures(const Metrics& metrics) const;

  const RlConfig& config_;
  const TrainOptions& options_;
  const fs::path run_;
  const RunLock lock_;
  const StopSignals signals_;
  const CheckpointStore store_;
  const at::Device device_;
  const ModelText text_;
  const TokenizedPrompts prompts_;
  std::optional<TokenizedPrompts> eval_prompts_;
  const Model model_;
  Learner learner_;
  Engine engine_;
  ExperienceMaker maker_;
  DecisionLog decisions_;
  RunState state_;
  int64_t saved_step_ = -1;
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<Progress> progress_;
  const bool overlaps_;
  std::future<Experience> coming_;  // generated beside the step
  OverlapWorker overlap_;           // last: it waits for the work before anything the work uses goes
};

Run::Run(const RlConfig& config, const TrainOptions& options)
    : config_(config),
      options_(options),
      run_(config.run.dir),
      lock_(run_),
      store_(run_),
      device_(RunDevice(config.run)),
      text_(ModelText::FromDirectory(config.model.path, config.data)),
      prompts_(LoadPrompts(text_, DataWithinContext(config), config.data.train)),
      model_(LoadModel(config.model.path, TrainerType(config.model.precision), device_)),
      learner_(config, model_, LoadReference(config, device_), text_.vocabulary()),
      engine_(model_, MakeEngineOptions(config, device_)),
      maker_(config, text_, prompts_, engine_),
      decisions_(config, text_, prompts_, model_, learner_.loss()),
      overlaps_(Overlaps(config, device_)),
      overlap_(device_) {
  for (const Prompt& prompt : prompts_.prompts) VerifierFor(config.reward, prompt);
  if (!config.eval.files.empty()) {
    eval_prompts_ = LoadPrompts(text_, DataWithinContext(config), config.eval.files, config.eval.prompts);
    for (const Prompt& prompt : eval_prompts_->prompts) VerifierFor(config.reward, prompt);
  }
  Resume();
  RlConfig resolved = config;
  WriteFileAtomically(run_ / "config.yaml", ToYaml(FieldsOf(resolved)));
  if (config.log.tensorboard) tensorboard_.emplace(run_ / kTensorBoardDirectory, state_.step);
}

void Run::Resume() {
  const std::optional<fs::path> from = FindCheckpoint(config_.run, store_);
  if (from) {
    CheckSameConfig(*from, config_);
    state_ = LoadState(*from, prompts_, &learner_);
    engine_.UpdateWeights(model_, state_.step);
    saved_step_ = state_.step;
    if (config_.log.console) fmt::print(stderr, "resuming from {}\n", from->string());
  }
  const int64_t last_step = from ? state_.step : -1;
  for (const char* name : {kMetricsFile, kTokenRecordsFile, kPointsFile}) {
    KeepLinesUpToStep(run_ / name, last_step);
  }
}

TrainOutcome Run::ToEnd() {
  if (state_.step == 0 && !state_.before && config_.eval.at_start && eval_prompts_) {
    Metrics metrics;
    EvaluateNow(&metrics);
    state_.before = state_.after;
    Log(metrics);
    if (config_.log.console) fmt::print(stderr, "before training: accuracy {:.1f}%\n", 100 * *state_.before);
  }
  progress_.emplace("train", "step", config_.train.steps,
                    ProgressOptions{.shown = config_.log.console, .begin = state_.step});
  while (state_.step < config_.train.steps && StopSignals::Received() == nullptr) {
    Step();
    if (!options_.dump.empty()) return {};
  }
  const bool complete = state_.step >= config_.train.steps;
  if (saved_step_ != state_.step) Save();
  progress_.reset();
  if (complete) Finish();
  return {state_.step, state_.before, state_.after, state_.train_seconds,
          complete ? "" : StopSignals::Received()};
}

void Run::Step() {
  const auto start = Clock::now();
  StepMetrics figures;
  const Experience experience = NextExperience();
  ++state_.step;
  AddRolloutFigures(experience, &figures);
  Learn(experience, &figures);
  TakeComing(&figures);
  auto stage = Clock::now();
  engine_.UpdateWeights(model_, state_.step);
  figures.Set("timing_s/update_weights", SecondsSince(stage));
  Metrics metrics = figures.Values();
  const bool evaluates = EvaluationDue();
  if (evaluates) {
    stage = Clock::now();
    EvaluateNow(&metrics);
    metrics["timing_s/testing"] = SecondsSince(stage);
  }
  const double seconds = SecondsSince(start);
  metrics["timing_s/step"] = seconds;
  metrics["perf/time_per_step"] = seconds;
  metrics["perf/throughput"] = metrics["perf/total_num_tokens"] / seconds;
  metrics["perf/cpu_memory_used_gb"] = PeakMemoryGib();
  state_.train_seconds += seconds;
  Log(metrics);
  decisions_.Write(run_, state_.step);
  if (evaluates && options_.evaluated) options_.evaluated();
  progress_->Update(state_.step, Figures(metrics));
  if (config_.checkpoint.every > 0 && state_.step % config_.checkpoint.every == 0) {
    stage = Clock::now();
    Save();
    state_.train_seconds += SecondsSince(stage);
  }
}

// The oldest experience waiting; as many as rollout.staleness stay behind it, so that each is learned from
// that many updates after it was generated. The last of them may come while the step learns: it depends on
// the engine's weights, which stay as they are until then.
Experience Run::NextExperience() {
  const int64_t needed = overlaps_ ? config_.rollout.staleness : config_.rollout.staleness + 1;
  while (static_cast<int64_t>(state_.waiting.size()) < needed) {
    state_.waiting.push_back(maker_.Make(&state_.position));
  }
  Experience next = std::move(state_.waiting.front());
  state_.waiting.pop_front();
  if (overlaps_) coming_ = overlap_.Start([this] { return maker_.Make(&state_.position); });
  return next;
}

void Run::TakeComing(StepMetrics* metrics) {
  if (!coming_.valid()) return;
  const auto start = Clock::now();
  state_.waiting.push_back(coming_.get());
  metrics->Set("timing_s/gen_wait", SecondsSince(start));
}

void Run::Learn(const Experience& experience, StepMetrics* metrics) {
  const auto start = Clock::now();
  if (!overlaps_) engine_.ReleaseMemory();
  LearnHooks hooks;
  hooks.spoil_gradient = options_.spoil_step == state_.step;
  std::optional<StepDump> dump;
  if (!options_.dump.empty()) dump.emplace(options_.dump, model_, learner_.optimizer());
  const bool due = decisions_.Due(state_.step);
  std::optional<Audit> audit;
  if (config_.audit.every > 0 && state_.step % config_.audit.every == 0)
    audit.emplace(model_, learner_.loss());
  if (due || audit) {
    hooks.last_minibatch = [&](const MicroBatch& batch, const PolicyLoss& out) {
      if (due) decisions_.Visit(batch, out);
      if (audit) audit->See(batch, out);
    };
  }
  hooks.before_update = [&](std::span<const TrainSample> samples, const StepSums& sums) {
    if (due) decisions_.Describe(state_.step, experience);
    if (dump) dump->BeforeUpdate(samples, sums);
  };
  hooks.after_update = [&](const UpdateResult& result) {
    if (dump) dump->AfterUpdate(result);
  };
  for (const char* count : {"actor/updates", "actor/skipped_updates"}) metrics->AddSum(count, 0);
  learner_.Learn(state_.step, experience, hooks, metrics);
  if (audit) audit->Finish(metrics);
  metrics->Set("timing_s/update_actor", SecondsSince(start));
}

void Run::AddRolloutFigures(const Experience& e, StepMetrics* metrics) const {
  double tokens = 0;
  for (size_t i = 0; i < e.rollouts.size(); ++i) {
    const Rollout& rollout = e.rollouts[i];
    metrics->AddSpread("critic/score", e.scores[i].value);
    metrics->AddSpread("critic/rewards", e.rewards[i]);
    metrics->AddMean("critic/acc/mean", e.scores[i].right ? 1 : 0, 1);
    metrics->AddSpread("response_length", static_cast<double>(rollout.tokens.size()));
    metrics->AddMean("response_length/clip_ratio", rollout.finish == FinishReason::kLength ? 1 : 0, 1);
    metrics->AddSpread("prompt_length", static_cast<double>(rollout.prompt_tokens.size()));
    tokens += static_cast<double>(rollout.tokens.size() + rollout.prompt_tokens.size());
  }
  metrics->Set("rollout/age", static_cast<double>(state_.step - 1 - e.weight_version));
  metrics->AddMean("rollout/equal_groups", static_cast<double>(e.equal_groups),
                   static_cast<double>(e.groups));
  metrics->Set("rollout/groups", static_cast<double>(e.prompts.size()));
  metrics->Set("rollout/refills", static_cast<double>(e.refills));
  metrics->Set("rollout/failed", static_cast<double>(e.failed));
  metrics->Set("reward/errors", static_cast<double>(e.reward_errors));
  metrics->Set("perf/total_num_tokens", tokens);
  metrics->Set("timing_s/gen", e.generate_seconds);
  metrics->Set("timing_s/reward", e.reward_seconds);
}

bool Run::EvaluationDue() const {
  if (!eval_prompts_) return false;
  if (state_.step == config_.train.steps) return true;
  return config_.eval.every > 0 && state_.step % config_.eval.every == 0;
}

void Run::EvaluateNow(Metrics* metrics) {
  const Evaluation evaluation = Evaluate(config_, text_, *eval_prompts_, engine_);
  metrics->insert(evaluation.metrics.begin(), evaluation.metrics.end());
  state_.after = evaluation.accuracy;
}

void Run::Log(const Metrics& metrics) {
  AppendMetrics(run_, state_.step, metrics);
  if (tensorboard_) tensorboard_->Write(state_.step, metrics);
  if (options_.logged) options_.logged(state_.step, metrics);
}

std::string Run::Figures(const Metrics& metrics) const {
  const auto get = [&](const char* name) {
    const auto found = metrics.find(name);
    return found == metrics.end() ? std::nan("") : found->second;
  };
  std::string text = fmt::format("reward {:.3f}  acc {:.1f}%  masked {:.2f}%", get("critic/score/mean"),
                                 100 * get("critic/acc/mean"), 100 * get("mask/masked"));
  if (state_.after) text += fmt::format("  held-out {:.1f}%", 100 * *state_.after);
  return text;
}

void Run::Save() {
  store_.Write(state_.step, config_.checkpoint.keep,
               [this](const fs::path& directory) { SaveState(state_, learner_, config_, directory); });
  saved_step_ = state_.step;
}

void Run::Finish() {
  SaveModel(model_, run_ / "model");
  CopyTokenizerFiles(config_.model.path, run_ / "model");
  const auto or_null = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  const Json summary = {{"before", or_null(state_.before)},
                        {"after", or_null(state_.after)},
                        {"train_seconds", state_.train_seconds},
                        {"seed", config_.run.seed},
                        {"steps", state_.step},
                        {"samples", config_.eval.samples},
                        {"mask", FormatRule(config_.mask.rule)}};
  WriteFileAtomically(run_ / "summary.json", summary.dump(2) + "\n");
}

}  // namespace

TrainOutcome RunTraining(const RlConfig& config, const TrainOptions& options) {
  SetThreads(config.run.threads);
  Run run(config, options);
  return run.ToEnd();
}

}  // namespace augur
