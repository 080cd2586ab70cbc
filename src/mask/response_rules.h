// Rules with a statistic of a response or of the batch, in float64: they need the log-probs of the sampled
// tokens alone. docs/rules.md has the formulas.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mask/reference.h"

namespace augur {

// The sampled tokens of a batch, response by response. A token whose behaviour is -inf has no recorded
// support: it belongs to no statistic and is not kept.
struct SampledTokens {
  std::span<const double> behaviour, policy;  // [T] log mu and log pi
  std::span<const double> advantage;          // [T]
  std::span<const int64_t> lengths;           // of the responses; they add up to T
};

// Whether the rule's statistic is one of a response, so that lengths are needed.
bool NeedsLengths(const MaskRule& rule);

// One decision for each token; the rule's scope is not kToken.
std::vector<TokenDecision> DecideResponses(const MaskRule& rule, const SampledTokens& tokens);

}  // namespace augur
