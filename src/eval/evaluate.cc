#include "eval/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <optional>

#include "base/error.h"
#include "base/stop_signals.h"
#include "ops/parallel/ranks.h"
#include "rollout/generate_on_ranks.h"

namespace augur {
namespace {

constexpr uint64_t kEvaluationSeed = 0x6576616C;  // "eval": draws apart from those of training

// Responses being scored, in the order of the rollouts.
using PendingScores = std::vector<std::future<Score>>;

std::vector<Rollout> Sample(const EvaluationTask& task, const GenerateHooks& hooks, PendingScores* pending) {
  std::vector<GenerateRequest> requests;
  for (size_t i = 0; i < task.prompts.prompts.size(); ++i) {
    const Prompt& prompt = task.prompts.prompts[i];
    requests.push_back({prompt.index, task.prompts.tokens[i], prompt.Where()});
  }
  GenerateHooks with_text = hooks;
  with_text.text = [&](int32_t token) { return task.text.tokenizer.TokenBytes(token); };
  const auto samples = static_cast<size_t>(task.sampling.samples);
  pending->resize(requests.size() * samples);
  GroupScorer scores(task.scorer, samples);
  with_text.finished = [&](size_t place, const Rollout& rollout) {
    if (rollout.finish == FinishReason::kCancelled) return;
    (*pending)[place] =
        scores.Start(place, {&task.prompts.prompts[place / samples], task.text.ResponseText(rollout.tokens),
                             rollout.tokens, task.steps});
  };
  return GenerateOnRanks(task.engine, requests, task.sampling, with_text);
}

// Why a prompt has no part in the figures, beginning with its place, or empty. A Python function that fails
// costs its response alone.
std::string FaultOf(const Prompt& prompt, std::span<const Rollout> rollouts, std::span<const Score> scores,
                    bool uses_python) {
  if (!prompt.fault.empty()) return prompt.fault;
  for (const Rollout& rollout : rollouts) {
    if (rollout.finish == FinishReason::kFailed) return rollout.error;
  }
  for (const Score& score : scores) {
    if (score.failed && !uses_python) return prompt.Where() + ": " + score.error;
  }
  return "";
}

PromptScores SummarizePrompt(const EvaluationTask& task, const Prompt& prompt,
                             std::span<const Rollout> rollouts, std::span<const Score> scores) {
  PromptScores scored{.data_source = prompt.data_source, .right = {}, .scores = {}, .answers = {}};
  scored.fault = FaultOf(prompt, rollouts, scores, task.scorer.uses_python());
  if (!scored.fault.empty()) return scored;
  for (size_t i = 0; i < rollouts.size(); ++i) {
    scored.right.push_back(scores[i].right);
    scored.scores.push_back(scores[i].value);
    scored.answers.push_back(scores[i].answered ? std::optional(scores[i].answer) : std::nullopt);
    if (scores[i].failed && scored.errors++ == 0) scored.error = scores[i].error;
    for (const auto& [name, value] : scores[i].figures) {
      scored.figures[name].first += value;
      ++scored.figures[name].second;
    }
    scored.tokens += static_cast<int64_t>(rollouts[i].tokens.size());
    scored.cut_off += rollouts[i].finish == FinishReason::kLength;
  }
  return scored;
}

// Why no response to a prompt will have a part in the figures, as far as can be told without one: its row
// could not be read, or its verifier cannot use the answer. Empty where there is no reason.
std::string FaultOfRow(const Prompt& prompt, const Scorer& scorer) {
  if (!prompt.fault.empty()) return prompt.fault;
  if (scorer.uses_python()) return "";
  const Score score = scorer.Start({&prompt, ""}).get();
  return score.failed ? prompt.Where() + ": " + score.error : "";
}

}  // namespace

void CheckEvaluation(const RlConfig& config, const ModelText& text, const TokenizedPrompts& prompts,
                     const Scorer& scorer, const Engine& engine) {
  constexpr int64_t kMostResponses = 1 << 20;
  engine.CheckOptions(EvaluationSampling(config, text), /*has_text=*/true);
  const auto count = static_cast<int64_t>(prompts.prompts.size());
  const auto is_bad = [&](const Prompt& prompt) { return !FaultOfRow(prompt, scorer).empty(); };
  if (count > 0 && std::ranges::all_of(prompts.prompts, is_bad)) {
    throw Error("eval.files",
                fmt::format("not one of {} rows can be evaluated; the first: {}", count,
                            FaultOfRow(prompts.prompts.front(), scorer)),
                "correct them, or evaluate on other files");
  }
  if (count > 0 && config.eval.samples > kMostResponses / count) {
    throw Error("eval.samples",
                fmt::format("{} responses to {} prompts are more than {}", config.eval.samples, count,
                            kMostResponses),
                "make it smaller, or eval.prompts");
  }
}

std::vector<std::string> Evaluation::Faults() const {
  std::vector<std::string> faults;
  for (const PromptScores& prompt : prompts) {
    if (!prompt.fault.empty()) faults.push_back(prompt.fault);
  }
  return faults;
}

ScoringErrors Evaluation::Errors(const std::vector<Prompt>& asked) const {
  ScoringErrors errors;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (errors.errors == 0 && prompts[i].errors > 0) {
      errors.where = asked[i].Where();
      errors.reason = prompts[i].error;
    }
    errors.errors += prompts[i].errors;
    errors.responses += static_cast<int64_t>(prompts[i].scores.size());
  }
  return errors;
}

Evaluation Evaluate(const EvaluationTask& task, const GenerateHooks& hooks) {
  Evaluation evaluation;
  PendingScores pending;
  evaluation.rollouts = Sample(task, hooks, &pending);
  if (hooks.cancelled && Ranks::World().Max(hooks.cancelled() ? 1 : 0) > 0) return evaluation;
  const auto samples = static_cast<size_t>(task.sampling.samples);
  const std::span<const Rollout> rollouts = evaluation.rollouts;
  for (const Rollout& rollout : rollouts) evaluation.not_finite |= rollout.not_finite;
  std::vector<Score> scores;
  try {
    scores = ScoresOfRanks(&pending);
  } catch (const Stopped&) {
    if (!hooks.cancelled) throw;
    return evaluation;
  }
  if (hooks.cancelled && Ranks::World().Max(hooks.cancelled() ? 1 : 0) > 0) return evaluation;
  for (size_t i = 0; i < task.prompts.prompts.size(); ++i) {
    evaluation.prompts.push_back(SummarizePrompt(task, task.prompts.prompts[i],
                                                 rollouts.subspan(i * samples, samples),
                                                 std::span(scores).subspan(i * samples, samples)));
  }
  return evaluation;
}

SamplingOptions EvaluationSampling(const RlConfig& config, const ModelText& text) {
  SamplingOptions options;
  options.temperature = config.eval.temperature;
  options.top_k = config.eval.top_k;
  options.top_p = config.eval.top_p;
  options.max_tokens = config.eval.max_tokens > 0 ? config.eval.max_tokens : config.rollout.max_tokens;
  options.samples = config.eval.samples;
  options.seed = static_cast<uint64_t>(config.run.seed) ^ kEvaluationSeed << 32;
  options.vocab_size = text.vocab_size();
  options.end_tokens = text.end_tokens;
  options.stop_texts = config.rollout.stop;
  return options;
}

Metrics EvaluationMetrics(const Evaluation& evaluation) {
  const SourceScores all = evaluation.Overall();
  if (all.prompts == 0 && all.failed > 0) {
    const std::string what = fmt::format("not one of {} prompts could be evaluated; the first: {}",
                                         all.failed, evaluation.Faults().front());
    if (!evaluation.not_finite) throw Error("eval.files", what, "");
    throw NotFiniteError("eval.files", what,
                         "go on from an earlier checkpoint (run.resume) with a smaller train.lr");
  }
  Metrics metrics;
  for (const auto& [source, scores] : ScoresBySource(evaluation.prompts)) {
    metrics[fmt::format("val-aux/{}/failed", source)] = static_cast<double>(scores.failed);
    if (scores.prompts == 0) continue;
    const std::string accuracy = fmt::format("val-core/{}/acc/", source);
    metrics[fmt::format("{}mean@{}", accuracy, scores.samples)] = scores.average;
    metrics[fmt::format("{}best@{}/mean", accuracy, scores.samples)] = scores.pass.at(scores.samples);
    metrics[fmt::format("{}maj@{}/mean", accuracy, scores.samples)] = scores.majority;
    metrics[fmt::format("val-aux/{}/answered/mean@{}", source, scores.samples)] = scores.answered;
    if (scores.scored > 0)
      metrics[fmt::format("val-aux/{}/reward/mean@{}", source, scores.samples)] = scores.score;
    if (scores.errors > 0)
      metrics[fmt::format("val-aux/{}/reward_errors", source)] = static_cast<double>(scores.errors);
    for (const auto& [name, sum] : scores.figures) {
      metrics[fmt::format("val-aux/{}/{}/mean@{}", source, name, scores.samples)] =
          sum.first / static_cast<double>(sum.second);
    }
  }
  return metrics;
}

}  // namespace augur
