#include "train/run/sft.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/run_lock.h"
#include "base/stop_signals.h"
#include "config/read.h"
#include "config/write.h"
#include "data/prompt_order.h"
#include "metrics/metrics_file.h"
#include "metrics/progress.h"
#include "metrics/tensorboard.h"
#include "model/load.h"
#include "model/random_init.h"
#include "model/save.h"
#include "rollout/device.h"
#include "rollout/prompts.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/state_tensors.h"
#include "train/run/resume.h"
#include "train/step/bad_updates.h"
#include "train/step/schedule.h"
#include "train/step/sft_step.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

std::string AnswerText(const Prompt& prompt) {
  if (prompt.ground_truth.is_string()) return prompt.ground_truth.get<std::string>();
  if (prompt.ground_truth.is_number()) return prompt.ground_truth.dump();
  throw Error(prompt.Where(), "the answer is neither text nor a number", "write it as text");
}

std::vector<SftExample> MakeExamples(const SftConfig& config, const ModelText& text) {
  TokenizedPrompts prompts = LoadPrompts(text, config.data, config.data.train);
  std::vector<SftExample> examples;
  for (size_t i = 0; i < prompts.prompts.size(); ++i) {
    std::vector<int32_t> response = text.tokenizer.Encode(AnswerText(prompts.prompts[i]));
    response.push_back(text.end_tokens.front());
    examples.push_back({std::move(prompts.tokens[i]), std::move(response)});
  }
  return examples;
}

Model StartModel(const SftConfig& config, at::Device device) {
  const at::ScalarType type = TrainerType(config.model.precision);
  if (!config.sft.from_scratch) return LoadModel(config.model.path, type, device);
  return RandomModel(ReadModelConfig(config.model.path), type, device,
                     static_cast<uint64_t>(config.run.seed));
}

constexpr const char* kSftState = "state.json";
constexpr const char* kSftTensors = "tensors.safetensors";
constexpr const char* kSftConfig = "config.yaml";

// One run from start, or resumption, to end.
class Run {
 public:
  explicit Run(const SftConfig& config);
  SftOutcome ToEnd();

 private:
  void Resume();
  Metrics Step();
  void Log(const Metrics& metrics);
  void Save();

  const SftConfig& config_;
  const fs::path run_;
  const RunLock lock_;
  const StopSignals signals_;
  const CheckpointStore store_;
  const ModelText text_;
  const std::vector<SftExample> examples_;
  PromptOrder order_;
  const Model model_;
  Optimizer optimizer_;
  BadUpdates bad_updates_;
  int64_t step_ = 0;  // finished ones
  int64_t saved_step_ = -1;
  std::optional<TensorBoardWriter> tensorboard_;
};

Run::Run(const SftConfig& config)
    : config_(config),
      run_(config.run.dir),
      lock_(run_),
      store_(run_),
      text_(ModelText::FromDirectory(config.model.path, config.data)),
      examples_(MakeExamples(config, text_)),
      order_(examples_.size(), static_cast<uint64_t>(config.run.seed), config.data.shuffle),
      model_(StartModel(config, RunDevice(config.run))),
      optimizer_(model_, MakeOptimizerOptions(config.sft.optimizer)),
      bad_updates_(config.sft.optimizer.max_bad_updates) {
  Resume();
  SftConfig resolved = config;
  WriteFileAtomically(run_ / kSftConfig, ToYaml(FieldsOf(resolved)));
  if (config.log.tensorboard) tensorboard_.emplace(run_ / kTensorBoardDirectory, step_);
}

void Run::Resume() {
  const std::optional<fs::path> from = FindCheckpoint(config_.run, store_);
  if (from) {
    RefuseChanges(config_.run, *from, ChangedKeys(ReadSftConfig(*from / kSftConfig), config_));
    const std::string path = (*from / kSftState).string();
    const Json state = ParseJson(ReadFile(path), path);
    LoadStateTensors(optimizer_.State(), *from / kSftTensors);
    try {
      step_ = saved_step_ = state.at("step");
      optimizer_.Restored(state.at("updates"));
      bad_updates_.set_in_row(state.at("bad_in_row"));
    } catch (const Json::exception& fault) {
      throw Error(path, fault.what(), kOtherCheckpoint);
    }
    if (config_.log.console) fmt::print(stderr, "resuming from {}\n", from->string());
  }
  KeepLinesUpToStep(run_ / kMetricsFile, from ? step_ : -1);
}

SftOutcome Run::ToEnd() {
  std::optional<Progress> progress;
  progress.emplace("sft", "step", config_.sft.steps,
                   ProgressOptions{.shown = config_.log.console, .begin = step_});
  while (step_ < config_.sft.steps && StopSignals::Received() == nullptr) {
    const Metrics metrics = Step();
    Log(metrics);
    progress->Update(step_, fmt::format("loss {:.4f}  {:.0f} tokens/s", metrics.at("train/loss"),
                                        metrics.at("perf/throughput")));
    if (config_.checkpoint.every > 0 && step_ % config_.checkpoint.every == 0) Save();
  }
  const bool complete = step_ >= config_.sft.steps;
  if (saved_step_ != step_) Save();
  progress.reset();
  if (complete) {
    SaveModel(model_, run_ / "model");
    CopyTokenizerFiles(config_.model.path, run_ / "model");
  }
  return {step_, complete ? "" : StopSignals::Received()};
}

Metrics Run::Step() {
  const auto start = Clock::now();
  const OptimizerFields& fields = config_.sft.optimizer;
  std::vector<SftExample> batch;
  for (int64_t i = 0; i < config_.sft.batch; ++i) {
    batch.push_back(examples_[order_.At(static_cast<uint64_t>(step_ * config_.sft.batch + i))]);
  }
  const SftSums sums = AccumulateSft(model_, optimizer_, batch, fields.micro_tokens,
                                     MakeForwardOptions(config_.model.precision, fields));
  const double lr = LearningRate(
      {fields.schedule, fields.lr, fields.warmup_steps, config_.sft.steps, fields.min_lr_ratio}, step_);
  const UpdateResult update = optimizer_.Update(lr);
  ++step_;
  bad_updates_.Count(update.skipped, step_);
  const double seconds = SecondsSince(start);
  return {{"train/loss", sums.loss},  {"train/grad_norm", update.grad_norm},
          {"train/lr", lr},           {"train/skipped_updates", update.skipped ? 1 : 0},
          {"timing_s/step", seconds}, {"perf/throughput", static_cast<double>(sums.packed_tokens) / seconds}};
}

void Run::Log(const Metrics& metrics) {
  AppendMetrics(run_, step_, metrics);
  if (tensorboard_) tensorboard_->Write(step_, metrics);
}

void Run::Save() {
  store_.Write(step_, config_.checkpoint.keep, [this](const fs::path& directory) {
    SaveStateTensors(optimizer_.State(), directory / kSftTensors);
    const Json state = {
        {"step", step_}, {"updates", optimizer_.updates()}, {"bad_in_row", bad_updates_.in_row()}};
    WriteFileAtomically(directory / kSftState, state.dump(2) + "\n");
    SftConfig config = config_;
    WriteFileAtomically(directory / kSftConfig, ToYaml(FieldsOf(config)));
  });
  saved_step_ = step_;
}

}  // namespace

SftOutcome RunSft(const SftConfig& config) {
  SetThreads(config.run.threads);
  return Run(config).ToEnd();
}

}  // namespace augur
