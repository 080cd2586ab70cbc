#include "train/run/evaluate.h"

#include <fmt/format.h>

#include "base/error.h"
#include "train/step/rewards.h"

namespace augur {
namespace {

constexpr uint64_t kEvaluationSeed = 0x6576616C;  // "eval": draws apart from those of training

constexpr int64_t kMostResponses = 1 << 24;

SamplingOptions EvaluationSampling(const RlConfig& config, const ModelText& text) {
  SamplingOptions options;
  options.temperature = config.eval.temperature;
  options.top_k = config.eval.top_k;
  options.top_p = config.eval.top_p;
  options.max_tokens = config.eval.max_tokens > 0 ? config.eval.max_tokens : config.rollout.max_tokens;
  options.samples = config.eval.samples;
  options.seed = static_cast<uint64_t>(config.run.seed) ^ kEvaluationSeed << 32;
  options.vocabulary = text.vocabulary();
  options.end_tokens = text.end_tokens;
  options.stop_texts = config.rollout.stop;
  return options;
}

}  // namespace

void CheckEvaluation(const RlConfig& config, const ModelText& text, const TokenizedPrompts& prompts,
                     const Engine& engine) {
  engine.CheckOptions(EvaluationSampling(config, text), /*has_text=*/true);
  const auto count = static_cast<int64_t>(prompts.prompts.size());
  if (config.eval.samples > kMostResponses / count) {
    throw Error("eval.samples",
                fmt::format("{} responses to {} prompts are more than {}", config.eval.samples, count,
                            kMostResponses),
                "make it smaller, or eval.prompts");
  }
}

Evaluation Evaluate(const RlConfig& config, const ModelText& text, const TokenizedPrompts& prompts,
                    Engine& engine, const GenerateHooks& hooks) {
  GenerateHooks with_text = hooks;
  with_text.text = [&](int32_t token) { return text.tokenizer.TokenBytes(token); };
  std::vector<GenerateRequest> requests;
  for (size_t i = 0; i < prompts.prompts.size(); ++i) {
    requests.push_back({i, prompts.tokens[i], prompts.prompts[i].Where()});
  }
  const std::vector<Rollout> rollouts =
      engine.Generate(requests, EvaluationSampling(config, text), with_text);

  StepMetrics metrics;
  double right = 0;
  const auto samples = static_cast<size_t>(config.eval.samples);
  for (size_t i = 0; i < prompts.prompts.size(); ++i) {
    const Prompt& prompt = prompts.prompts[i];
    double here = 0;
    for (size_t s = 0; s < samples; ++s) {
      here += ScoreResponse(config.reward, prompt, text.ResponseText(rollouts[i * samples + s].tokens)).right;
    }
    const std::string name = fmt::format("val-core/{}/acc/", prompt.data_source);
    metrics.AddMean(fmt::format("{}mean@{}", name, samples), here, static_cast<double>(samples));
    metrics.AddMean(fmt::format("{}best@{}/mean", name, samples), here > 0 ? 1 : 0, 1);
    right += here;
  }
  return {right / static_cast<double>(rollouts.size()), metrics.Values()};
}

}  // namespace augur
