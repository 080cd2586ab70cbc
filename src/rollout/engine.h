// The generation engine: many sequences at once, entering and leaving the batch at every step, on the CPU or
// one GPU.
//
//   Engine engine(model, {.precision = RolloutPrecision::kFp8});
//   std::vector<Rollout> rollouts = engine.Generate(requests, {.max_tokens = 256, .support = 20});
//   engine.UpdateWeights(model, version);
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/names.h"
#include "config/options.h"
#include "model/layer_store.h"
#include "model/model.h"
#include "rollout/rollout.h"

namespace augur {

class PartTimer;

enum class RolloutPrecision {
  kFp32,
  kBf16,
  kFp8,  // weights e4m3 per output channel, activations e4m3 per token; the LM head and norms unchanged
};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<RolloutPrecision>{"fp32", "bf16", "fp8"};

// Throw Error at `where` for a name that is none.
RolloutPrecision ParseRolloutPrecision(std::string_view name, std::string_view where);
KvPrecision ParseKvPrecision(std::string_view name, std::string_view where);

struct EngineOptions {
  RolloutPrecision precision = RolloutPrecision::kBf16;
  KvPrecision kv_precision = KvPrecision::kBf16;
  // Share of the memory that is free which keys and values may take: when a Generate needs more than is held,
  // with own_weights when the engine is made.
  double memory_share = 0.5;
  // Most sequences decoded at once; 0 takes what fits, 256 at most.
  int64_t max_batch = 0;
  // Copies weights even where they could be shared, so that they may change while the engine generates.
  bool own_weights = false;
  // Where the model's weights are while they are not used, which are then copied; null: in the model.
  LayerStore* store = nullptr;
  // Record the experts of every token; for models that have some.
  bool record_routing = false;
  // Bytes for keys and values; 0 takes memory_share of what is free. Tests make it small.
  int64_t kv_bytes = 0;
  // Told where the time of decode steps goes; must outlive the engine. For benchmarks.
  PartTimer* parts = nullptr;
};

struct SamplingOptions {
  double temperature = 1;  // 0 is greedy
  // Truncations of the distribution, for evaluation only: CheckTrainingSampling refuses them.
  int64_t top_k = 0;  // 0: off
  double top_p = 1;   // 1: off
  double min_p = 0;   // 0: off
  int64_t max_tokens = 256;
  int64_t samples = 1;  // responses to each prompt
  int64_t support = 0;  // K: this many most likely tokens are recorded with the sampled one; 0: none
  uint64_t seed = 0;
  int64_t vocab_size = 0;  // ids from here on are padding rows of the head, never sampled; 0: all are tokens
  std::vector<int32_t> end_tokens;      // any of them ends a response
  std::vector<std::string> stop_texts;  // need a `text` function in GenerateHooks
};

// Throws Error, with the reason, for options under which the recorded log-probs would not be those of the
// distribution sampled from (top_k, top_p, min_p, greedy).
void CheckTrainingSampling(const SamplingOptions& options, std::string_view where);

// Throws Error at `where` unless the K most likely tokens are fewer than all of them.
void CheckSupport(int64_t support, int64_t vocab_size, std::string_view where);

// Throws Error naming the field for options out of range. `has_text`: whether tokens' bytes are known.
void CheckSamplingOptions(const SamplingOptions& options, const ModelConfig& config, bool has_text);

// One prompt. `key` stands for it in the random generator: draws depend on (seed, key, sample, position)
// alone. `where` opens error messages about it.
struct GenerateRequest {
  uint64_t key = 0;
  std::vector<int32_t> tokens;
  std::string where;
  int64_t max_tokens = 0;  // of its responses, where that is less than the options'; 0: as they say
};

struct GenerateProgress {
  int64_t finished = 0, total = 0;  // responses
  int64_t new_tokens = 0, prefill_tokens = 0;
  double seconds = 0;
};

struct GenerateHooks {
  // Bytes of one token, for stop strings.
  std::function<std::string_view(int32_t token)> text;
  // Called after every step.
  std::function<void(const GenerateProgress&)> progress;
  // Called with each token as it is sampled: the index of the request, the sample, the token.
  std::function<void(size_t request, int64_t sample, int32_t token)> token;
  // Called with each response once it is whole, and its place among those that Generate returns. A response
  // that failed or was cancelled comes here, too.
  std::function<void(size_t place, const Rollout& rollout)> finished;
  // Which request to take next, by its index, where `held` unfinished ones are here; none: none for now.
  // Where it is set, only those are generated, and the other rollouts come back without tokens.
  std::function<std::optional<size_t>(int64_t held)> next;
  // Asked at every step; true ends generation and returns what there is.
  std::function<bool()> cancelled;
};

struct EngineStats {
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t prefill_tokens = 0, new_tokens = 0, preemptions = 0;
  int64_t decode_batch = 0;  // most sequences decoded at once
  int64_t decode_steps = 0, decoded_tokens = 0;
  int64_t decode_threads = 0;  // of all decode steps together

  // The share of places in the batch that stood empty, over all decode steps.
  double idle_share() const;
  // CPU threads that took part in a decode step, in the mean.
  double mean_threads() const;
};

// Throws Error at `where` for a model without experts.
void CheckHasExperts(const ModelConfig& config, std::string_view where);
// Throws Error at `where` where the routing of such a model cannot be recorded.
void CheckRecordsRouting(const ModelConfig& config, std::string_view where);

class Engine {
 public:
  // `model` lends its weights: where the precision is the model's own on CUDA they are shared (unless
  // own_weights), otherwise copied in the form the engine computes with. Throws Error where not even one
  // sequence fits.
  Engine(const Model& model, const EngineOptions& options);
  ~Engine();

  // The responses, ordered by request and sample. A prompt that is empty, too long for the context, or holds
  // an id outside the vocabulary, and one whose logits turn out not finite, yields rollouts with kFailed and
  // an error that begins with its `where`; the others go on. Throws Error for options out of range.
  std::vector<Rollout> Generate(std::span<const GenerateRequest> requests, const SamplingOptions& options,
                                const GenerateHooks& hooks = {});

  // Throws Error naming the field where Generate would refuse the options; `has_text`: whether it will know
  // tokens' bytes.
  void CheckOptions(const SamplingOptions& options, bool has_text) const;

  // Takes over the model's current weights (same configuration as at construction), rounded as the precision
  // asks; rollouts made from then on carry `version`.
  void UpdateWeights(const Model& model, int64_t version);
  int64_t weight_version() const;

  // Gives the memory of keys and values back until the next Generate.
  void ReleaseMemory();
  // Gives copies of weights back, too; UpdateWeights must come before the next Generate.
  void ReleaseWeights();
  // Of weights that are not shared with the model.
  int64_t weight_bytes() const;

  const EngineStats& stats() const;  // of the last Generate

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace augur
