#include "train/run/trainer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hub.h"
#include "base/json.h"
#include "base/run_directory.h"
#include "base/stop_signals.h"
#include "base/tell.h"
#include "config/pin.h"
#include "config/read.h"
#include "config/write.h"
#include "eval/evaluate.h"
#include "model/adapter_files.h"
#include "model/load.h"
#include "reward/python_function.h"
#include "rollout/device.h"
#include "train/checkpoint/run_state.h"
#include "train/parallel/layer_shards.h"
#include "train/parallel/stop.h"
#include "train/run/choose_shard.h"
#include "train/run/idle_settings.h"
#include "train/run/lora.h"
#include "train/run/memory_check.h"
#include "train/run/overlap.h"
#include "train/run/run_loop.h"
#include "train/step/audit.h"
#include "train/step/decision_log.h"
#include "train/step/step_copy.h"
#include "train/step/step_dump.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

// The directory of the reference; none where there is no KL penalty, or where the base of adapters is the
// reference.
std::optional<std::string> ReferencePath(const RlConfig& config) {
  if (config.algorithm.kl_coef == 0) return std::nullopt;
  if (!config.model.reference.empty()) return config.model.reference;
  return UsesLora(config.lora) ? std::nullopt : std::optional(config.model.path);
}

bool HaveSameTokenizer(const std::string& model, const std::string& other) {
  const fs::path one = fs::path(ModelDirectory(model)) / "tokenizer.json";
  const fs::path two = fs::path(ModelDirectory(other)) / "tokenizer.json";
  return fs::exists(one) && fs::exists(two) && ReadFile(one) == ReadFile(two);
}

std::optional<Reference> LoadReference(const RlConfig& config, int64_t vocab_size, at::Device device) {
  const std::optional<std::string> found = ReferencePath(config);
  if (!found) return std::nullopt;
  const std::string& path = *found;
  // Models of one family may have other numbers of rows beyond the tokenizer's tokens, which nothing reads.
  const int64_t rows = ReadModelConfig(config.model.path).vocab_size;
  const int64_t others = ReadModelConfig(path).vocab_size;
  if (others != rows && (others < vocab_size || !HaveSameTokenizer(config.model.path, path))) {
    throw Error(
        "model.reference",
        fmt::format("{} has a vocabulary of {} rows and the model one of {}, and their tokenizer.json differ",
                    path, others, rows),
        "give a model with the same tokenizer");
  }
  const Shard shard = UsesLora(config.lora) ? Shard::kNone : config.parallel.shard;
  return MakeReference(LoadModel(path, TrainerType(config.model.precision), device), shard);
}

// Of a token's recorded experts.
int64_t RoutingBytes(const ModelConfig& model) {
  return std::ranges::count(model.sparse, true) * model.moe.experts_per_token;
}

MemoryUse UsesMemory(const RlConfig& config, const ModelConfig& model, at::Device device) {
  const RolloutSection& rollout = config.rollout;
  const int64_t longest = std::min(model.max_positions, config.data.max_prompt_tokens + rollout.max_tokens);
  const int64_t prompts = config.train.minibatch > 0 ? config.train.minibatch : rollout.prompts;
  const int64_t micro = std::max(longest, config.train.optimizer.micro_tokens);
  const int64_t update = prompts * rollout.group * longest;
  const std::optional<std::string> reference = ReferencePath(config);
  return {.model = model,
          .section = config.model,
          .lora = config.lora,
          .optimizer = config.train.optimizer,
          .tokens = std::min(micro, update),
          .several = update > micro,
          .rollouts = true,
          .own_rollouts = Overlaps(config, device),
          .reference = reference ? std::optional(ReadModelConfig(*reference)) : std::nullopt,
          .reward_workers = config.reward.python.empty() ? 0 : CountRewardWorkers(config.reward.workers),
          .gathered_tokens =
              static_cast<double>(rollout.prompts * rollout.group * longest * (rollout.staleness + 1)),
          .bytes_of_token = static_cast<double>(8 * (rollout.support + 1) + 8 +
                                                (rollout.replay_routing ? RoutingBytes(model) : 0)),
          .shard = config.parallel.shard};
}

Shard ChooseRunShard(const RlConfig& config) {
  const at::Device device = RunDevice(config.run);
  return ChooseShard(config.parallel, [&](Shard shard) {
    const ModelConfig model = ReadModelConfig(config.model.path);
    MemoryUse use = UsesMemory(config, model, device);
    use.tokens = 0;
    use.shard = shard;
    return PlanMemory(use, device);
  });
}

// No response comes near the limit, where overlong shaping lies, for instance.
void WarnOfShortContext(const RlConfig& config) {
  const int64_t context = ReadModelConfig(config.model.path).max_positions;
  const auto warn = [&](std::string_view key, int64_t tokens) {
    if (tokens < context) return;
    Tell(
        "augur: warning: {} is {}, and the model's context of {} tokens ends responses before that; make it "
        "smaller\n",
        key, tokens, context);
  };
  warn("rollout.max_tokens", config.rollout.max_tokens);
  if (!config.eval.files.empty()) warn("eval.max_tokens", config.eval.max_tokens);
}

// Throws Error where the run does not fit.
MemoryPlan PlanRun(const RlConfig& config, at::Device device) {
  const ModelConfig shape = ReadModelConfig(config.model.path);
  const MemoryUse use = UsesMemory(config, shape, device);
  MemoryPlan plan = PlanMemory(use, device);
  RequireMemory(plan, use, "train", config.log.console);
  return plan;
}

Model LoadPolicy(const RlConfig& config, at::Device device, const MemoryPlan& plan) {
  const ModelSection& model = config.model;
  const ModelConfig shape = ReadModelConfig(model.path);
  Model policy = LoadModel(model.path, TrainerType(model.precision), device);
  StartLora(config.lora, model.precision, static_cast<uint64_t>(config.run.seed), &policy);
  if (config.log.console) TellMemory(plan, UsesMemory(config, shape, device), "train");
  return policy;
}

double PeakMemoryGib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

void AddRolloutFigures(const Experience& e, int64_t step, bool uses_python, StepMetrics* metrics) {
  double tokens = 0, unscored = 0;
  for (size_t i = 0; i < e.rollouts.size(); ++i) {
    const Rollout& rollout = e.rollouts[i];
    unscored += e.scores[i].unscored() ? 1 : 0;
    if (!e.scores[i].unscored()) {
      metrics->AddSpread("critic/score", e.scores[i].value);
      metrics->AddSpread("critic/rewards", e.rewards[i]);
      metrics->AddMean("critic/acc/mean", e.scores[i].right ? 1 : 0, 1);
      metrics->AddMean("critic/answered/mean", e.scores[i].answered ? 1 : 0, 1);
    }
    for (const auto& [name, value] : e.scores[i].figures) {
      metrics->AddMean(fmt::format("reward/{}/mean", name), value, 1);
    }
    metrics->AddSpread("response_length", static_cast<double>(rollout.tokens.size()));
    metrics->AddMean("response_length/clip_ratio", rollout.finish == FinishReason::kLength ? 1 : 0, 1);
    metrics->AddSpread("prompt_length", static_cast<double>(rollout.prompt_tokens.size()));
    tokens += static_cast<double>(rollout.tokens.size() + rollout.prompt_tokens.size());
  }
  metrics->Set("rollout/age", static_cast<double>(step - 1 - e.weight_version));
  metrics->AddMean("rollout/equal_groups", static_cast<double>(e.equal_groups),
                   static_cast<double>(e.groups));
  metrics->Set("rollout/groups", static_cast<double>(e.prompts.size()));
  metrics->Set("rollout/refills", static_cast<double>(e.refills));
  metrics->Set("rollout/failed", static_cast<double>(e.failed));
  metrics->Set("reward/errors", static_cast<double>(e.reward_errors));
  if (uses_python) {
    metrics->Set("reward/restarts", static_cast<double>(e.reward_restarts));
    metrics->Set("reward/unscored", unscored);
  }
  metrics->Set("perf/total_num_tokens", tokens);
  metrics->Set("perf/decode_batch", static_cast<double>(e.decode_batch));
  metrics->Set("timing_s/gen", e.generate_seconds);
  metrics->Set("timing_s/reward", e.reward_seconds);
}

EngineOptions EngineOf(const Learner& learner, EngineOptions options) {
  options.store = learner.optimizer().layer_shards();
  return options;
}

// The steps of reinforcement learning: generate, score, learn.
class RlWork : public StepWork {
 public:
  RlWork(const RlConfig& config, const TrainOptions& options);

  Metrics Step(int64_t step, const StageWatch& watch) override;
  bool UndoStep() override;
  std::string Headline(const Metrics& metrics) const override;
  bool EvaluationDue(int64_t step) const override;
  std::string Evaluate(int64_t step, const StageWatch& watch, Metrics* metrics) override;
  Json Save(const fs::path& directory) override {
    if (model_.lora && Ranks::World().first()) SaveAdapter(model_, config_.model.path, directory);
    return SaveState(state_, learner_, directory);
  }
  void Load(int64_t step, const fs::path& directory, const Json& state, bool keep_waiting) override;
  void Finish(int64_t step, double seconds) override;
  std::string MemoryRemedy(std::string_view stage) const override;

  const RunState& state() const { return state_; }

 private:
  struct Overlapped {
    Experience experience;
    uint64_t position = 0;  // after it
  };

  Experience NextExperience(int64_t step, const StageWatch& watch);
  void TakeOverlapped(StepMetrics* metrics);
  void WarnOfNoUpdate(int64_t step, const Metrics& metrics);
  void CountFlatScores(const Experience& experience);
  void WarnOfFlatScores(int64_t step);
  void WriteSummary(int64_t step, double seconds) const;
  void Learn(int64_t step, const StageWatch& watch, StepMetrics* metrics);

  const RlConfig& config_;
  const TrainOptions& options_;
  const at::Device device_;
  const ModelText text_;
  const TokenizedPrompts prompts_;
  std::optional<TokenizedPrompts> eval_prompts_;
  const Scorer scorer_;
  VerifierNames verifiers_;  // by data source, of training and evaluation
  const MemoryPlan plan_;
  const std::optional<Reference> reference_;
  const Model model_;
  Learner learner_;
  StepCopy copy_;
  Engine engine_;
  ExperienceMaker maker_;
  DecisionLog decisions_;
  RunState state_;
  std::optional<Experience> learning_;  // what the step under way learns from
  bool updated_ = false;                // that step has changed the weights
  bool warned_of_no_update_ = false, warned_of_flat_scores_ = false;
  const bool overlaps_;
  std::future<Overlapped> overlapped_;  // generated while the step learns
  OverlapWorker worker_;                // last: it waits for the work before anything the work uses goes
};

RlWork::RlWork(const RlConfig& config, const TrainOptions& options)
    : config_(config),
      options_(options),
      device_(RunDevice(config.run)),
      text_(ModelText::FromDirectory(config.model.path, config.data)),
      prompts_(LoadPrompts(
          text_, DataWithinContext(config), config.data.train,
          {.keep_columns = !config.reward.python.empty(), .answer_required = config.reward.python.empty()})),
      scorer_(MakeScorer(config.reward)),
      verifiers_(NamesBySource(scorer_, prompts_.prompts)),
      plan_(PlanRun(config, device_)),
      reference_(LoadReference(config, text_.vocab_size(), device_)),
      model_(LoadPolicy(config, device_, plan_)),
      learner_(config, model_, reference_ ? &*reference_ : nullptr, text_.vocab_size()),
      copy_(learner_.optimizer(), learner_.bad_updates()),
      engine_(model_, EngineOf(learner_, MakeEngineOptions(config, device_))),
      maker_(config, text_, prompts_, engine_, scorer_),
      decisions_(config, text_, prompts_, learner_.loss()),
      overlaps_(Overlaps(config, device_)),
      worker_(device_) {
  if (!config.eval.files.empty()) {
    eval_prompts_ = LoadPrompts(text_, DataWithinContext(config), config.eval.files,
                                {.limit = config.eval.prompts,
                                 .keep_bad_rows = true,
                                 .keep_columns = !config.reward.python.empty(),
                                 .answer_required = config.reward.python.empty()});
    verifiers_.merge(NamesBySource(scorer_, eval_prompts_->prompts));
    CheckEvaluation(config, text_, *eval_prompts_, scorer_, engine_);
  }
  WarnOfShortContext(config);
  for (const std::string& idle : IdleSettings(config, Ranks::World().size())) {
    Tell("augur: warning: {}\n", idle);
  }
  if (config.model.precision == Precision::kFp32) {
    Tell("{}", SlowPrecisionWarning(device_, "model.precision: bf16"));
  }
  if (config.log.console) {
    TellChatFormat(config.model.path, text_, config.data, prompts_.prompts);
    Tell("responses are scored: {}\n", DescribeNames(verifiers_));
  }
}

void RlWork::Load(int64_t step, const fs::path& directory, const Json& state, bool keep_waiting) {
  state_ = LoadState(state, directory, prompts_, keep_waiting, &learner_);
  if (!keep_waiting && !state.at("waiting").empty() && Ranks::World().first()) {
    Tell(
        "responses that waited in {} are dropped, and their prompts answered again: what made "
        "them has changed\n",
        directory.string());
  }
  engine_.UpdateWeights(model_, step);
}

Metrics RlWork::Step(int64_t step, const StageWatch& watch) {
  const auto start = Clock::now();
  StepMetrics figures;
  copy_.Forget();
  updated_ = false;
  learning_ = NextExperience(step, watch);
  AddRolloutFigures(*learning_, step, scorer_.uses_python(), &figures);
  Learn(step, watch, &figures);
  TakeOverlapped(&figures);
  const auto stage = Clock::now();
  engine_.UpdateWeights(model_, step);
  figures.Set("timing_s/update_weights", SecondsSince(stage));
  if (Ranks::World().first()) decisions_.Write(config_.run.dir, step);
  const double seconds = SecondsSince(start);
  Metrics metrics = figures.Values();
  WarnOfNoUpdate(step, metrics);
  CountFlatScores(*learning_);
  WarnOfFlatScores(step);
  metrics["timing_s/step"] = seconds;
  metrics["perf/time_per_step"] = seconds;
  metrics["perf/throughput"] = metrics["perf/total_num_tokens"] / seconds;
  metrics["perf/cpu_memory_used_gb"] = PeakMemoryGib();
  metrics["perf/state_memory_gb"] = static_cast<double>(learner_.optimizer().ResidentBytes()) / (1 << 30);
  learning_.reset();
  return metrics;
}

// The oldest experience waiting; as many as rollout.staleness stay behind it, so that each is learned from
// that many updates after it was generated. The last of them may come while the step learns: it depends on
// the engine's weights, which stay as they are until then.
Experience RlWork::NextExperience(int64_t step, const StageWatch& watch) {
  const int64_t needed = overlaps_ ? config_.rollout.staleness : config_.rollout.staleness + 1;
  const auto waiting = [this] { return static_cast<int64_t>(state_.waiting.size()); };
  while (waiting() < needed) {
    state_.waiting.push_back(maker_.Make(step + waiting(), &state_.position, watch));
  }
  Experience next = std::move(state_.waiting.front());
  state_.waiting.pop_front();
  if (overlaps_) {
    overlapped_ = worker_.Start([this, begin = state_.position, later = step + 1 + waiting()] {
      uint64_t position = begin;
      Experience experience = maker_.Make(later, &position);
      return Overlapped{std::move(experience), position};
    });
  }
  return next;
}

void RlWork::TakeOverlapped(StepMetrics* metrics) {
  if (!overlapped_.valid()) return;
  const auto start = Clock::now();
  Overlapped made = overlapped_.get();
  state_.waiting.push_back(std::move(made.experience));
  state_.position = made.position;
  metrics->Set("timing_s/gen_wait", SecondsSince(start));
}

// But for what was generated for the step, which is not generated again.
bool RlWork::UndoStep() {
  try {
    if (overlapped_.valid()) overlapped_.get();
  } catch (const std::exception&) {  // ends for the same reason, or is the reason
  }
  if (!learning_) return true;
  if (updated_ && !(copy_.taken() && copy_.Restore())) return false;
  state_.waiting.push_front(*std::exchange(learning_, std::nullopt));
  return true;
}

void RlWork::Learn(int64_t step, const StageWatch& watch, StepMetrics* metrics) {
  const auto start = Clock::now();
  if (!overlaps_) engine_.ReleaseMemory();
  if (learner_.optimizer().layer_shards() != nullptr) engine_.ReleaseWeights();
  metrics->Set("perf/rollout_weights_gb", static_cast<double>(engine_.weight_bytes()) / (1 << 30));
  LearnHooks hooks;
  hooks.corrupt_gradient = options_.corrupt_gradient_step == step;
  hooks.several_updates = [&] { copy_.Take(); };
  hooks.progress = [&](int64_t done, int64_t total) { watch({"updating", done, total, "tokens"}); };
  std::optional<StepDump> dump;
  if (!options_.dump.empty()) dump.emplace(options_.dump, model_, learner_.optimizer());
  const bool due = decisions_.Due(step);
  std::optional<Audit> audit;
  if (config_.audit.every > 0 && step % config_.audit.every == 0) audit.emplace(model_, learner_.loss());
  if (audit || overlaps_) copy_.Take();  // there is work after the last update that may be stopped
  if (due || audit) {
    hooks.last_minibatch = [&](const MicroBatch& batch, const PolicyLoss& out) {
      if (due) decisions_.Visit(batch, out);
      if (audit) audit->See(batch, out);
    };
  }
  hooks.before_update = [&](std::span<const TrainSample> samples, const StepSums& sums) {
    if (due) decisions_.Describe(step, *learning_);
    if (dump) dump->BeforeUpdate(samples, sums);
    updated_ = true;
  };
  hooks.after_update = [&](const UpdateResult& result) {
    if (dump) dump->AfterUpdate(result);
  };
  for (const char* count : {"actor/updates", "actor/skipped_updates"}) metrics->AddSum(count, 0);
  learner_.Learn(step, *learning_, hooks, metrics);
  if (audit) audit->Finish(metrics);
  metrics->Set("timing_s/update_actor", SecondsSince(start));
}

bool RlWork::EvaluationDue(int64_t step) const {
  if (!eval_prompts_) return false;
  if (step == 0) return config_.eval.at_start;
  return step == config_.train.steps || (config_.eval.every > 0 && step % config_.eval.every == 0);
}

std::string RlWork::Evaluate(int64_t step, const StageWatch& watch, Metrics* metrics) {
  const auto start = Clock::now();
  GenerateHooks hooks;
  hooks.progress = [&](const GenerateProgress& now) {
    watch({"evaluating", now.finished, now.total, "responses", now.new_tokens});
  };
  hooks.progress({.total = static_cast<int64_t>(eval_prompts_->prompts.size()) * config_.eval.samples});
  if (!Ranks::World().alone()) hooks.cancelled = [] { return StopSignals::Received() != nullptr; };
  const Evaluation evaluation =
      augur::Evaluate({engine_, text_, *eval_prompts_, scorer_, EvaluationSampling(config_, text_),
                       StepsOfRun{step, config_.train.steps}},
                      hooks);
  if (hooks.cancelled) CheckStopTogether();
  const ScoringErrors errors = evaluation.Errors(eval_prompts_->prompts);
  Ranks::World().Together([&] {  // all ranks know of them, and one tells
    LimitErrors(errors, config_.reward.max_errors, "the held-out", scorer_.uses_python());
    metrics->merge(EvaluationMetrics(evaluation));
  });
  if (errors.errors > 0 && config_.log.console) {
    Tell("augur: warning: {}: {} of {} held-out responses could not be scored and count as wrong; here: {}\n",
         errors.where, errors.errors, errors.responses, errors.reason);
  }
  if (config_.log.console && !state_.after) {
    for (const std::string& fault : evaluation.Faults()) Tell("augur: warning: {}\n", fault);
  }
  state_.after = evaluation.Overall().average;
  if (step == 0) {
    state_.before = state_.after;
    return fmt::format("before training: accuracy {:.1f}%", 100 * *state_.before);
  }
  const double seconds = SecondsSince(start);
  (*metrics)["timing_s/testing"] = seconds;
  (*metrics)["timing_s/step"] += seconds;
  return "";
}

// Once: a run whose steps all end so looks as if it trained.
void RlWork::WarnOfNoUpdate(int64_t step, const Metrics& metrics) {
  if (metrics.at("actor/updates") + metrics.at("actor/skipped_updates") > 0) return;
  if (std::exchange(warned_of_no_update_, true) || !config_.log.console || !Ranks::World().first()) return;
  std::vector<std::string> settings;
  if (config_.algorithm.drop_truncated) settings.emplace_back("algorithm.drop_truncated");
  if (config_.algorithm.skip_equal_groups) settings.emplace_back("algorithm.skip_equal_groups");
  if (config_.algorithm.dynamic_sampling) {
    settings.push_back(fmt::format("algorithm.dynamic_sampling, {} refills", metrics.at("rollout/refills")));
  }
  Tell("augur: warning: step {} made no update: every response was left out{}\n", step,
       settings.empty() ? "" : fmt::format(" ({})", fmt::join(settings, ", ")));
}

void RlWork::CountFlatScores(const Experience& e) {
  const bool any = !std::ranges::all_of(e.scores, [](const Score& score) { return score.unscored(); });
  const bool zero =
      std::ranges::all_of(e.scores, [](const Score& score) { return score.unscored() || score.value == 0; });
  state_.zero_steps = any && zero ? state_.zero_steps + 1 : 0;
  const bool equal = config_.rollout.group > 1 && e.groups > 0 && e.equal_groups == e.groups;
  state_.equal_steps = equal ? state_.equal_steps + 1 : 0;
}

// Once: such a run looks as if it trained, too.
void RlWork::WarnOfFlatScores(int64_t step) {
  constexpr int64_t kMany = 10;
  const bool zero = state_.zero_steps >= kMany;
  if (!zero && state_.equal_steps < kMany) return;
  if (std::exchange(warned_of_flat_scores_, true) || !config_.log.console) return;
  const std::string look = fmt::format("look at responses with `augur watch {}`", config_.run.dir);
  if (!zero) {
    Tell(
        "augur: warning: step {}: in the last {} steps all responses to a prompt scored the same, "
        "which gives no advantage to learn from; {}, and take easier or harder prompts, a larger "
        "rollout.group, or a finer "
        "reward\n",
        step, state_.equal_steps, look);
    return;
  }
  Tell("augur: warning: step {}: in the last {} steps every response scored 0; {}, and check {}\n", step,
       state_.zero_steps, look,
       scorer_.uses_python()
           ? "reward.python"
           : "the answers and reward.verifier (`augur prompts --verifier`, `augur verify`)");
}

std::string RlWork::Headline(const Metrics& metrics) const {
  const auto get = [&](const char* name) {
    const auto found = metrics.find(name);
    return found == metrics.end() ? std::nan("") : found->second;
  };
  std::vector<std::string> parts;
  if (const double reward = get("critic/score/mean"); !std::isnan(reward)) {
    parts.push_back(fmt::format("reward {:.3f}  acc {:.1f}%", reward, 100 * get("critic/acc/mean")));
  }
  parts.push_back(get("actor/updates") > 0 ? fmt::format("masked {:.2f}%", 100 * get("mask/masked"))
                                           : "no update");
  if (state_.after) parts.push_back(fmt::format("held-out {:.1f}%", 100 * *state_.after));
  return fmt::format("{}", fmt::join(parts, "  "));
}

void RlWork::Finish(int64_t step, double seconds) {
  LayerShards* const shards = learner_.optimizer().layer_shards();
  if (shards != nullptr) engine_.ReleaseWeights();  // room for the parts that are gathered
  SaveResult(model_, config_.model.path, config_.run.dir, shards);
  Ranks::World().OnFirst([&] { WriteSummary(step, seconds); });
}

void RlWork::WriteSummary(int64_t step, double seconds) const {
  const auto or_null = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  const Json summary = {{"before", or_null(state_.before)},
                        {"after", or_null(state_.after)},
                        {"train_seconds", seconds},
                        {"seed", config_.run.seed},
                        {"steps", step},
                        {"samples", config_.eval.samples},
                        {"verifiers", verifiers_},
                        {"mask", FormatRule(config_.mask.rule)}};
  WriteFileAtomically(fs::path(config_.run.dir) / "summary.json", summary.dump(2) + "\n");
}

std::string RlWork::MemoryRemedy(std::string_view stage) const {
  if (stage == "updating") {
    return UpdateMemoryRemedy("train", config_.train.optimizer, config_.lora, config_.parallel.shard);
  }
  return fmt::format("set rollout.max_batch to fewer sequences, or rollout.memory_share below {}",
                     config_.rollout.memory_share);
}

}  // namespace

TrainOutcome RunTraining(const RlConfig& given, const TrainOptions& options) {
  RlConfig config;
  Ranks::World().Together([&] {
    std::optional<StopScope> scope;
    if (Ranks::World().alone()) scope.emplace();
    config = PinRevisions(given);
    TakeAdapterDirectory(&config.model, &config.lora);
    RunDevice(config.run);  // is there
    if (!options.dump.empty() && !Ranks::World().alone()) {
      throw Error("--dump-step", "shows the updates of one process", "start it without torchrun");
    }
    if (config.rollout.replay_routing) {
      CheckRecordsRouting(ReadModelConfig(config.model.path), "rollout.replay_routing");
    }
    if (config.algorithm.load_balance_coef > 0) {
      CheckHasExperts(ReadModelConfig(config.model.path), "algorithm.load_balance_coef");
    }
  });
  std::vector<std::string> files = config.data.train;
  files.insert(files.end(), config.eval.files.begin(), config.eval.files.end());
  if (!config.reward.python.empty()) {
    if (const auto file = FileOfFunction(config.reward.python)) files.push_back(*file);
  }
  RlConfig resolved = config;
  const RunSetup setup{
      .name = "train",
      .run = config.run,
      .model = config.model,
      .lora = config.lora,
      .parallel = config.parallel,
      .checkpoint = config.checkpoint,
      .log = config.log,
      .steps = config.train.steps,
      .data_files = files,
      .frozen_models = FrozenModels(config.model, config.lora, config.algorithm.kl_coef != 0),
      .yaml = ToYaml(FieldsOf(resolved)),
      .config_changes = [&](const fs::path& file) { return ChangedKeys(ReadRlConfig(file), config); },
      .schedule_change = [&](const fs::path& file) { return ScheduleChange(ReadRlConfig(file), config); },
      .begins = options.begins,
      .logged = options.logged,
      .evaluated = options.evaluated,
      .single_step = !options.dump.empty()};
  RlConfig used = config;
  used.parallel.shard = ChooseRunShard(config);
  std::optional<RlWork> work;
  const RunResult outcome = RunToEnd(setup, [&]() -> StepWork& { return work.emplace(used, options); });
  if (!work) return {outcome, {}, {}};
  return {outcome, work->state().before, work->state().after};
}

}  // namespace augur
