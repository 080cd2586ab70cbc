// The one form of a response, from the engine to the loss: its tokens, where each came from, and what was
// recorded of the behaviour policy at those that the model sampled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace augur {

enum class FinishReason {
  kEos,        // the model ended the response; its end token is the last token
  kLength,     // max_tokens, or the end of the context, was reached
  kStopText,   // a stop string appeared
  kCancelled,  // generation was interrupted; the tokens so far are kept
  kFailed,     // `error` says why; the tokens so far are kept
};
std::string_view FinishReasonName(FinishReason reason);  // "eos", "length", "stop", "cancelled", "failed"

// The support contract: column 0 is the sampled token, the rest the K most likely without it, in falling
// order; unused columns hold id -1 and -inf. Log-probs are at the sampling temperature, in float32, over the
// untruncated distribution.
struct RecordedSupport {
  int64_t columns = 0;          // K + 1; 0 where nothing was recorded
  std::vector<int32_t> ids;     // [sampled tokens, columns]
  std::vector<float> logprobs;  // [sampled tokens, columns]
};

// The experts that each token went through at generation.
struct RecordedRouting {
  int64_t layers = 0, experts_per_token = 0;  // sparse layers
  // [tokens, layers, experts_per_token], of the prompt and of what follows it but for the last token, which
  // nothing follows. Of prompt tokens that nobody drew from, the CPU does not compute the last layer's, which
  // stand as 0, 1, ...
  std::vector<uint8_t> experts;

  int64_t width() const { return layers * experts_per_token; }
};

// Tokens [begin, end) of a trajectory's `tokens` that have one source.
struct Span {
  int64_t begin = 0, end = 0;
  bool sampled = true;         // by the model; else observed, as what a tool answers
  int64_t weight_version = 0;  // of the weights that sampled

  bool operator==(const Span&) const = default;
};

std::string_view SpanSource(const Span& span);  // "sampled" or "observed"

struct Trajectory {
  uint64_t prompt = 0;  // the request's key
  int64_t sample = 0;   // 0 .. samples - 1 within its group
  std::vector<int32_t> prompt_tokens;
  std::vector<int32_t> tokens;  // what follows the prompt, with the end token where there is one
  std::vector<Span> spans;      // of all `tokens`, in order; empty: all of them sampled by weight_version
  std::vector<float> logprobs;  // [sampled tokens]
  RecordedSupport support;
  RecordedRouting routing;  // with EngineOptions::record_routing
  double temperature = 1;
  int64_t weight_version = 0;  // of the first token
  FinishReason finish = FinishReason::kEos;
  std::string error;        // why it failed, beginning with the request's `where`
  bool not_finite = false;  // it failed because the model's logits were not finite

  // `spans`, or the one span that their absence stands for; none without tokens.
  std::vector<Span> Spans() const;
  int64_t sampled_tokens() const;
  // The places of the sampled tokens within `tokens`.
  std::vector<int64_t> SampledPlaces() const;
};

// Throws Error at `where` unless spans, log-probs and support are of the tokens.
void CheckTrajectory(const Trajectory& trajectory, std::string_view where);

}  // namespace augur
