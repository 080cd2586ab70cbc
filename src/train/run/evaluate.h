// Evaluation during a run: avg@k on held-out prompts, with the rollout engine.
#pragma once

#include <map>
#include <string>

#include "config/config.h"
#include "data/prompt_length.h"
#include "metrics/step_metrics.h"
#include "rollout/engine.h"
#include "rollout/prompts.h"

namespace augur {

struct Evaluation {
  double accuracy = 0;  // over all responses
  Metrics metrics;      // val-core/<source>/acc/mean@k, .../acc/best@k/mean
};

// Throws Error for settings of the section eval that the model cannot sample with.
void CheckEvaluation(const RlConfig& config, const ModelText& text, const TokenizedPrompts& prompts,
                     const Engine& engine);

// eval.samples responses to each prompt, sampled as the section says; the same draws at every call.
Evaluation Evaluate(const RlConfig& config, const ModelText& text, const TokenizedPrompts& prompts,
                    Engine& engine, const GenerateHooks& hooks = {});

}  // namespace augur
