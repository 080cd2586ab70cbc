// What an analysis of direction criteria measures, and the figures drawn from it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"

namespace augur {

// One criterion on the outside tokens of one batch. All vectors have one entry per outside token.
struct CriterionOutcome {
  std::string name;               // "ratio", "predicted-aggregated", ...
  std::vector<double> direction;  // its estimate: ratio - 1, or the predicted change
  std::vector<bool> keep;
  std::vector<double> change;  // realized: D after one update under this criterion's mask, minus D before
  // The share of the surrogate, the sum of weight * ratio * |advantage| over all tokens of the batch, that
  // the mask lets pass.
  double surrogate_kept = 1;
};

// The first-order change of one outside token's D by the unmasked update, in parts.
struct ChangeParts {
  size_t token = 0;         // place among the outside tokens
  double own = 0;           // by the token's own gradient
  double others = 0;        // by the other tokens' gradients of this minibatch
  double momentum = 0;      // by the gradients of earlier minibatches that Adam carries on
  double weight_decay = 0;  // by the decay of the weights

  double Total() const { return own + others + momentum + weight_decay; }
};

struct OutsideToken {
  int64_t sequence = 0, position = 0;
  int32_t id = 0;
  double advantage = 0, ratio = 1, divergence = 0;
};

// The outside tokens of one seed's batch by one divergence.
struct SeedOutcome {
  int64_t seed = 0;
  int64_t tokens = 0;  // of the batch, inside and outside
  std::vector<OutsideToken> outside;
  std::vector<double> unmasked_change;     // of each outside token, by the update without a mask
  std::vector<CriterionOutcome> criteria;  // the ratio first
  std::vector<ChangeParts> parts;          // of a sample of the outside tokens
  double momentum_cosine = 0;              // between the momentum's part of the update and the whole
};

// One divergence over all seeds as analysis.json has it: numbers of tokens, then per criterion the two
// questions apart. Prediction: does the sign of advantage * direction match the change that the unmasked
// update brings? Control: how much lower is the outside tokens' mean change under this mask than without one,
// and than under the ratio mask? And, after the paper's section 4.2, what becomes of the tokens on which
// criterion and ratio disagree. Every seed must have the same criteria.
Json SummarizeStudy(std::string_view divergence, double delta, std::span<const SeedOutcome> seeds);

// One line per outside token with everything above.
std::string StudyCsv(std::string_view divergence, std::span<const SeedOutcome> seeds, bool with_header);

}  // namespace augur
