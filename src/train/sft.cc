#include "train/sft.h"

#include <chrono>

#include "base/error.h"
#include "data/prompt_order.h"
#include "model/load.h"
#include "model/random_init.h"
#include "model/save.h"
#include "train/device.h"
#include "train/prompts.h"
#include "train/schedule.h"
#include "train/sft_step.h"

namespace augur {
namespace {

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

}  // namespace

void RunSft(const SftConfig& config, const SftHooks& hooks) {
  SetThreads(config.run.threads);
  const at::Device device = RunDevice(config.run);
  const ModelText text = ModelText::FromDirectory(config.model.path, config.data);
  const std::vector<SftExample> examples = MakeExamples(config, text);
  const Model model = StartModel(config, device);
  const OptimizerFields& fields = config.sft.optimizer;
  Optimizer optimizer(model, MakeOptimizerOptions(fields));
  PromptOrder order(examples.size(), static_cast<uint64_t>(config.run.seed), config.data.shuffle);
  const ScheduleOptions schedule{fields.schedule, fields.lr, fields.warmup_steps, config.sft.steps,
                                 fields.min_lr_ratio};
  for (int64_t step = 1; step <= config.sft.steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    if (hooks.stop && hooks.stop()) break;
    std::vector<SftExample> batch;
    for (int64_t i = 0; i < config.sft.batch; ++i) {
      batch.push_back(examples[order.At(static_cast<uint64_t>((step - 1) * config.sft.batch + i))]);
    }
    const SftSums sums = AccumulateSft(model, optimizer, batch, fields.micro_tokens,
                                       MakeForwardOptions(config.model.precision, fields));
    const double lr = LearningRate(schedule, step - 1);
    const UpdateResult update = optimizer.Update(lr);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (hooks.step) {
      hooks.step(step, {{"train/loss", sums.loss},
                        {"train/grad_norm", update.grad_norm},
                        {"train/lr", lr},
                        {"timing_s/step", seconds.count()},
                        {"perf/throughput", static_cast<double>(sums.packed_tokens) / seconds.count()}});
    }
  }
  const std::filesystem::path out = std::filesystem::path(config.run.dir) / "model";
  SaveModel(model, out);
  CopyTokenizerFiles(config.model.path, out);
}

}  // namespace augur
