// What generate, eval and doctor share: which model, where and in which precision it computes, how it
// samples.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "rollout/engine.h"
#include "rollout/prompts.h"

namespace augur {

struct EngineFlags {
  std::string model;
  std::string device = "auto";
  std::string precision = "auto";
  std::string kv_precision = "bf16";
  int64_t threads = 0;
  double memory_share = 0.5;
  int64_t max_batch = 0;
  bool record_routing = false;  // where the model allows it
};

void AddEngineFlags(CLI::App* command, EngineFlags* flags);

struct LoadedEngine {
  Model model;
  std::string precision;  // "fp32", "bf16" or "fp8", auto resolved
  std::unique_ptr<Engine> engine;
};

// auto: the GPU where there is one; bf16 where the weights are stored in it, else fp32. For fp8 the weights
// are loaded in bf16.
LoadedEngine LoadEngine(const EngineFlags& flags);

// Where fp32 makes a GPU slow, a line on stderr.
void WarnOfSlowPrecision(const LoadedEngine& loaded);

struct SamplingFlags {
  int64_t max_tokens = 256;
  int64_t samples = 1;
  double temperature = 1;
  bool greedy = false;
  int64_t top_k = 0;
  double top_p = 1, min_p = 0;
  uint64_t seed = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop = {};
};

void AddSamplingFlags(CLI::App* command, SamplingFlags* flags);

// The flags as the engine takes them; `text` may be absent where no text is needed, and then the end tokens
// come from the directory's configuration files.
SamplingOptions MakeSamplingOptions(const SamplingFlags& flags, const std::optional<ModelText>& text,
                                    const EngineFlags& engine, const ModelConfig& config);

// How prompts become text, for generate and eval.
struct PromptFlags {
  DataSection data;
  bool chat = false;
  std::optional<bool> thinking;
};

void AddPromptFlags(CLI::App* command, PromptFlags* flags);
DataSection MakeDataSection(const PromptFlags& flags);

}  // namespace augur
