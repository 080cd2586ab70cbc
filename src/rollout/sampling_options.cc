#include "base/error.h"
#include "rollout/engine.h"

namespace augur {
namespace {

// Beyond these, logits divided by it leave the range of float32.
constexpr double kLeastTemperature = 1e-30, kMostTemperature = 1e30;
constexpr int64_t kMostSamples = 1'000'000;

}  // namespace

RolloutPrecision ParseRolloutPrecision(std::string_view name, std::string_view where) {
  return ParseName<RolloutPrecision>(where, "rollout precision", name);
}

KvPrecision ParseKvPrecision(std::string_view name, std::string_view where) {
  return ParseName<KvPrecision>(where, "precision of keys and values", name);
}

void CheckTrainingSampling(const SamplingOptions& options, std::string_view where) {
  std::string culprit;
  if (options.temperature == 0) culprit = "greedy decoding (temperature 0)";
  if (options.top_k > 0) culprit = fmt::format("top_k {}", options.top_k);
  if (options.top_p < 1) culprit = fmt::format("top_p {}", options.top_p);
  if (options.min_p > 0) culprit = fmt::format("min_p {}", options.min_p);
  if (culprit.empty()) return;
  throw Error(where,
              culprit +
                  " truncates the distribution: the recorded log-probs would not be those of the "
                  "distribution sampled from",
              "sample with a temperature alone for training; truncations are for evaluation");
}

void CheckSupport(int64_t support, int64_t vocab_size, std::string_view where) {
  if (support >= 0 && support < vocab_size) return;
  throw Error(where, fmt::format("top-{} of a vocabulary of {} tokens", support, vocab_size),
              "record fewer tokens than there are");
}

void CheckSamplingOptions(const SamplingOptions& options, const ModelConfig& config, bool has_text) {
  auto require = [](bool good, std::string_view field, const std::string& what, std::string_view remedy) {
    if (!good) throw Error(field, what, remedy);
  };
  require(options.temperature == 0 ||
              (options.temperature >= kLeastTemperature && options.temperature <= kMostTemperature),
          "temperature", fmt::format("{} is not a temperature", options.temperature),
          fmt::format("give 0 (greedy), or {} to {}", kLeastTemperature, kMostTemperature));
  require(options.top_k >= 0, "top_k", fmt::format("{} is negative", options.top_k),
          "give a count, or 0 for all");
  require(options.top_p > 0 && options.top_p <= 1, "top_p", fmt::format("{} is not a share", options.top_p),
          "give more than 0 and at most 1");
  require(options.min_p >= 0 && options.min_p <= 1, "min_p", fmt::format("{} is not a share", options.min_p),
          "give 0 to 1");
  require(options.max_tokens >= 1, "max_tokens", fmt::format("{} leaves no response", options.max_tokens),
          "give 1 or more");
  require(options.samples >= 1, "samples", fmt::format("{} leaves no response", options.samples),
          "give 1 or more");
  require(options.samples <= kMostSamples, "samples", fmt::format("{} are too many", options.samples),
          fmt::format("give at most {} and call several times", kMostSamples));
  require(options.vocab_size >= 0 && options.vocab_size <= config.vocab_size, "vocab_size",
          fmt::format("{} tokens, but the model's head has {} rows", options.vocab_size, config.vocab_size),
          "use the tokenizer that belongs to the model");
  const int64_t vocab_size = options.vocab_size > 0 ? options.vocab_size : config.vocab_size;
  CheckSupport(options.support, vocab_size, "support");
  require(options.stop_texts.empty() || has_text, "stop_texts", "the text of tokens is unknown",
          "give a model directory with a tokenizer");
  for (const std::string& stop : options.stop_texts) {
    require(!stop.empty(), "stop_texts", "an empty stop string", "leave it out");
  }
}

}  // namespace augur
