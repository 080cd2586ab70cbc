// What the report's token viewer shows: responses with the mask's decision on each token, one JSON line per
// response in RUN/tokens.jsonl.
//
//   {"step": 12, "data_source": "sort", "prompt": "...", "answer": "...", "reward": 1, "advantage": 0.7,
//    "finish": "eos", "rule": "proximity=kl ...", "delta": 0.15, "spans": [[0, 12, "sampled", 11]], "tokens":
//    [
//      {"id": 7, "text": " 12", "ratio": 1.1, "divergence": 0.2, "direction": -0.1, "local": 0.01,
//       "global": -0.11, "advantage": 0.7, "keep": true, "outside": true, "disagree": true, "missing": false,
//       "support": [[id, text, mu, pi], ...], "mu_tail": 0.01, "pi_tail": 0.02}, ...]}
//
// Probabilities are at the sampling temperature. Text is made valid UTF-8; a number that is not finite is
// null and reads back as NaN.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "mask/reference.h"

namespace augur {

inline constexpr const char* kTokenRecordsFile = "tokens.jsonl";  // in the run directory

struct SupportAtom {
  int32_t id = -1;
  std::string text;
  double mu = 0, pi = 0;
};

struct TokenRecord {
  int32_t id = -1;
  std::string text;  // the token's bytes
  double ratio = 1, divergence = 0, direction = 0;
  // The predicted change of the divergence in two parts: what the sampled token's own logit does, and what
  // softmax normalisation does through all the others. Recorded whatever direction the rule takes.
  double local = 0, global = 0;
  double advantage = 0;
  bool keep = true, outside = false, disagree = false;
  bool missing = false;              // no recorded support: left out of the loss
  std::vector<SupportAtom> support;  // the sampled token first; unused columns left out
  double mu_tail = 0, pi_tail = 0;
};

// Tokens [begin, end) of the response: "sampled" by the weights of that version, or "observed".
struct SpanRecord {
  int64_t begin = 0, end = 0;
  std::string source;
  int64_t weight_version = 0;
};

struct ResponseRecord {
  int64_t step = 0;
  std::string data_source, prompt, answer;
  double reward = 0, advantage = 0;
  std::string finish;  // FinishReasonName
  std::string rule;    // FormatRule
  double delta = 0;
  std::vector<TokenRecord> tokens;     // the sampled ones
  std::vector<SpanRecord> spans = {};  // of the whole response
};

// Bytes of a token, for texts.
using TokenText = std::function<std::string(int32_t id)>;

// The decision of `rule` on one token, in float64. `ids` [M] belong to the entries of the view.
TokenRecord DescribeToken(const MaskRule& rule, const TokenView& token, std::span<const int32_t> ids,
                          const TokenText& text);

// One line each, without the line break.
Json ToJson(const ResponseRecord& record);
// Missing keys take the defaults above; throws Error at `where` only where the line is no object or a field
// has the wrong type.
ResponseRecord ResponseFromJson(const Json& line, std::string_view where);

// Appends lines to RUN/tokens.jsonl.
void AppendTokenRecords(const std::filesystem::path& run, std::span<const ResponseRecord> records);

}  // namespace augur
