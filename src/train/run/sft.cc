#include "train/run/sft.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/run_directory.h"
#include "base/stop_signals.h"
#include "base/tell.h"
#include "config/pin.h"
#include "config/read.h"
#include "config/write.h"
#include "data/prompt_order.h"
#include "model/adapter_files.h"
#include "model/load.h"
#include "model/random_init.h"
#include "rollout/device.h"
#include "rollout/prompts.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/state_tensors.h"
#include "train/run/choose_shard.h"
#include "train/run/idle_settings.h"
#include "train/run/lora.h"
#include "train/run/memory_check.h"
#include "train/step/bad_updates.h"
#include "train/step/schedule.h"
#include "train/step/sft_examples.h"
#include "train/step/sft_step.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

MemoryUse UsesMemory(const SftConfig& config, const ModelConfig& model) {
  const int64_t longest = std::min(model.max_positions, config.sft.optimizer.micro_tokens);
  return {.model = model,
          .section = config.model,
          .lora = config.lora,
          .optimizer = config.sft.optimizer,
          .tokens = std::min(config.sft.optimizer.micro_tokens, config.sft.batch * longest),
          .shard = config.parallel.shard};
}

Shard ChooseRunShard(const SftConfig& config) {
  const at::Device device = RunDevice(config.run);
  return ChooseShard(config.parallel, [&](Shard shard) {
    const ModelConfig model = ReadModelConfig(config.model.path);
    MemoryUse use = UsesMemory(config, model);
    use.tokens = 0;
    use.shard = shard;
    return PlanMemory(use, device);
  });
}

Model StartModel(const SftConfig& config, at::Device device) {
  const ModelSection& model = config.model;
  const ModelConfig shape = ReadModelConfig(model.path);
  const auto seed = static_cast<uint64_t>(config.run.seed);
  const MemoryUse use = UsesMemory(config, shape);
  const MemoryPlan plan = PlanMemory(use, device);
  RequireMemory(plan, use, "sft", config.log.console);
  const at::ScalarType type = TrainerType(model.precision);
  const bool scratch = config.sft.from_scratch;
  Model start = scratch ? RandomModel(shape, type, device, seed) : LoadModel(model.path, type, device);
  if (!scratch) StartLora(config.lora, model.precision, seed, &start);
  if (config.log.console) TellMemory(plan, use, "sft");
  return start;
}

// The steps of supervised fine-tuning: one update each.
class SftWork : public StepWork {
 public:
  explicit SftWork(const SftConfig& config);

  Metrics Step(int64_t step, const StageWatch& watch) override;
  bool UndoStep() override { return !updated_; }
  std::string Headline(const Metrics& metrics) const override;
  Json Save(const fs::path& directory) override;
  void Load(int64_t step, const fs::path& directory, const Json& state, bool keep_waiting) override;
  void Finish(int64_t step, double seconds) override;
  std::string MemoryRemedy(std::string_view /*stage*/) const override {
    return UpdateMemoryRemedy("sft", config_.sft.optimizer, config_.lora, config_.parallel.shard);
  }

 private:
  const SftConfig& config_;
  const std::vector<SftExample> examples_;
  PromptOrder order_;
  const Model model_;
  Optimizer optimizer_;
  BadUpdates bad_updates_;
  ForwardOptions forward_;
  bool updated_ = false;  // the step under way has changed the weights
};

SftWork::SftWork(const SftConfig& config)
    : config_(config),
      examples_(LoadSftExamples(config)),
      order_(examples_.size(), static_cast<uint64_t>(config.run.seed), config.data.shuffle),
      model_(StartModel(config, RunDevice(config.run))),
      optimizer_(model_, MakeOptimizerOptions(config.sft.optimizer, config.parallel)),
      bad_updates_(config.sft.optimizer.max_bad_updates),
      forward_(MakeForwardOptions(config.model.precision, config.sft.optimizer)) {
  for (const std::string& idle : IdleSettings(config)) {
    Tell("augur: warning: {}\n", idle);
  }
  if (optimizer_.layer_shards() == nullptr) return;
  optimizer_.layer_shards()->ReleaseAll();
  forward_.store = optimizer_.layer_shards();
  forward_.checkpoint_layers = true;
}

Metrics SftWork::Step(int64_t step, const StageWatch& watch) {
  const auto start = Clock::now();
  const OptimizerFields& fields = config_.sft.optimizer;
  std::vector<SftExample> batch;
  for (int64_t i = 0; i < config_.sft.batch; ++i) {
    batch.push_back(examples_[order_.At(static_cast<uint64_t>((step - 1) * config_.sft.batch + i))]);
  }
  const SftSums sums =
      AccumulateSft(model_, optimizer_, batch, fields.micro_tokens, forward_,
                    [&](int64_t done, int64_t total) { watch({"updating", done, total, "tokens"}); });
  const double lr = LearningRate(
      {fields.schedule, fields.lr, fields.warmup_steps, config_.sft.steps, fields.min_lr_ratio}, step - 1);
  optimizer_.ReduceGradient();
  updated_ = true;
  const UpdateResult update = optimizer_.Update(lr);
  bad_updates_.Count(update.skipped, step);
  updated_ = false;
  const double seconds = SecondsSince(start);
  return {{"train/loss", sums.loss},  {"train/grad_norm", update.grad_norm},
          {"train/lr", lr},           {"train/skipped_updates", update.skipped ? 1 : 0},
          {"timing_s/step", seconds}, {"perf/throughput", static_cast<double>(sums.packed_tokens) / seconds}};
}

std::string SftWork::Headline(const Metrics& metrics) const {
  return fmt::format("loss {:.4f}  {:.0f} tokens/s", metrics.at("train/loss"), metrics.at("perf/throughput"));
}

Json SftWork::Save(const fs::path& directory) {
  if (model_.lora && Ranks::World().first()) SaveAdapter(model_, config_.model.path, directory);
  SaveStateTensors(optimizer_, directory);
  return {{"updates", optimizer_.updates()}, {"bad_in_row", bad_updates_.in_row()}};
}

void SftWork::Load(int64_t /*step*/, const fs::path& directory, const Json& state, bool /*keep_waiting*/) {
  Ranks::World().Together([&] {
    LoadStateTensors(optimizer_, directory);
    bad_updates_.set_in_row(state.at("bad_in_row"));
  });
  optimizer_.Restored(state.at("updates"));
}

void SftWork::Finish(int64_t step, double seconds) {
  const std::filesystem::path run = config_.run.dir;
  SaveResult(model_, config_.model.path, run, optimizer_.layer_shards());
  Ranks::World().OnFirst([&] {
    const Json summary = {{"train_seconds", seconds}, {"seed", config_.run.seed}, {"steps", step}};
    WriteFileAtomically(run / "summary.json", summary.dump(2) + "\n");
  });
}

}  // namespace

RunResult RunSft(const SftConfig& given) {
  SftConfig config;
  Ranks::World().Together([&] {
    std::optional<StopScope> scope;
    if (Ranks::World().alone()) scope.emplace();
    config = PinRevisions(given);
    TakeAdapterDirectory(&config.model, &config.lora);
    if (config.sft.from_scratch && UsesLora(config.lora)) {
      throw Error("lora.rank", "has nothing to adapt: sft.from_scratch begins with random weights",
                  "set one of them");
    }
    RunDevice(config.run);  // is there
  });
  SftConfig resolved = config;
  const RunSetup setup{
      .name = "sft",
      .run = config.run,
      .model = config.model,
      .lora = config.lora,
      .parallel = config.parallel,
      .checkpoint = config.checkpoint,
      .log = config.log,
      .steps = config.sft.steps,
      .data_files = config.data.train,
      .frozen_models = FrozenModels(config.model, config.lora, /*with_reference=*/false),
      .yaml = ToYaml(FieldsOf(resolved)),
      .config_changes = [&](const fs::path& file) { return ChangedKeys(ReadSftConfig(file), config); },
      .schedule_change = [&](const fs::path& file) { return ScheduleChange(ReadSftConfig(file), config); }};
  SftConfig used = config;
  used.parallel.shard = ChooseRunShard(config);
  std::optional<SftWork> work;
  return RunToEnd(setup, [&]() -> StepWork& { return work.emplace(used); });
}

}  // namespace augur
