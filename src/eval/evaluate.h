// One evaluation for training and the command line: responses to held-out prompts, and their scores.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/prompt_length.h"
#include "eval/scores.h"
#include "metrics/step_metrics.h"
#include "reward/scorer.h"
#include "rollout/engine.h"
#include "rollout/prompts.h"

namespace augur {

// What is evaluated, and how; all of it must outlive the call.
struct EvaluationTask {
  Engine& engine;
  const ModelText& text;
  const TokenizedPrompts& prompts;
  const Scorer& scorer;
  SamplingOptions sampling;
  StepsOfRun steps = {};
};

struct Evaluation {
  std::vector<Rollout> rollouts;      // prompt after prompt, sampling.samples of each
  std::vector<PromptScores> prompts;  // [prompts]; empty where generation was cancelled
  bool not_finite = false;            // a prompt failed because the model's logits were not finite

  SourceScores Overall() const { return ScoresOverall(prompts); }
  // The faults of the prompts that failed, "file:line: ..."
  std::vector<std::string> Faults() const;
  // The responses of `asked`, the prompts that were evaluated, for which a Python function failed.
  ScoringErrors Errors(const std::vector<Prompt>& asked) const;
};

// sampling.samples responses to each prompt, scored. Draws follow from the seed and the prompt's index alone.
// A prompt that cannot be read, generated for or scored is left out of the figures, with its fault.
Evaluation Evaluate(const EvaluationTask& task, const GenerateHooks& hooks = {});

// Throws Error where the section eval asks for what the engine cannot sample, or for more responses than
// memory holds, and where not one of its rows can be evaluated.
void CheckEvaluation(const RlConfig& config, const ModelText& text, const TokenizedPrompts& prompts,
                     const Scorer& scorer, const Engine& engine);

// How the section eval says to sample.
SamplingOptions EvaluationSampling(const RlConfig& config, const ModelText& text);

// The figures of an evaluation during a run, by source, k = samples:
//   val-core/<source>/acc/mean@k         the share of right responses
//   val-core/<source>/acc/best@k/mean    of prompts with a right one
//   val-core/<source>/acc/maj@k/mean     of prompts whose most frequent answer is right
//   val-aux/<source>/answered/mean@k     of responses in which an answer was found
//   val-aux/<source>/reward/mean@k       the mean score
//   val-aux/<source>/failed              prompts that failed
//   val-aux/<source>/reward_errors       responses for which a Python function failed, where there are any
//   val-aux/<source>/<name>/mean@k       of a number that a Python function returned in addition to the score
// Throws NotFiniteError or Error where not one prompt could be evaluated.
Metrics EvaluationMetrics(const Evaluation& evaluation);

}  // namespace augur
