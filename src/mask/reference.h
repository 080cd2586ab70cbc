// The masks in float64, one token at a time, written as the formulas stand in the paper. Every kernel is
// tested against these functions. No update depends on them: apart from tests they describe the tokens that a
// run records (metrics/token_record.h) or `augur analyze` decomposes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "mask/rule.h"

namespace augur {

// One token as the mask sees it. Both spans run over the support: entry 0 is the sampled token, and an entry
// whose behaviour log-prob is -inf is unused (its policy value is ignored). With entry 0 unused the token has
// no recorded support.
struct TokenView {
  std::span<const double> behaviour;  // log mu
  std::span<const double> policy;     // log pi, at the same temperature
  double advantage = 0;
  int64_t vocab_size = 0;
  // Sum of squares of the policy's probabilities outside the support; only TailModel::kExact reads it.
  double tail_square = 0;
  // The policy's mass outside the support where it is known better than as one minus the rest.
  std::optional<double> policy_tail;
  // Sum of cubes of the same probabilities; only Direction::kSecondOrder reads it, with the exact tail.
  double tail_cube = 0;
};

struct TokenDecision {
  double ratio = 1;
  double divergence = 0;  // what proximity compares: the divergence, |ratio - 1|, or 0
  double direction = 0;   // ratio - 1, the predicted change, or the advantage's sign under any
  bool keep = true;
  double coefficient = 0;  // of A grad log pi(sampled); 0 where the token is not kept
  bool outside = false;
  bool outward = false;       // advantage x direction > 0
  bool disagree = false;      // outside, and the ratio and the prediction would decide differently
  bool mass_clamped = false;  // a recorded mass exceeded 1 by rounding
  bool missing = false;       // no recorded support: keep is false, the rest is neutral
};

TokenDecision DecideReference(const MaskRule& rule, const TokenView& token);

// A divergence, its first-order change per unit step along the gradient of log pi(sampled), and its gradient.
double ReferenceDivergence(Proximity proximity, Support support, const TokenView& token);
double ReferenceChange(Proximity proximity, Support support, TailModel tail, const TokenView& token);
// The second-order change of KL(mu || pi) along the same step.
double ReferenceCurvature(Support support, TailModel tail, const TokenView& token);

// In the logits: everywhere * pi_j for every token j of the vocabulary, plus at_atom[i] at entry i of the
// support (0 at unused entries).
struct LogitGradient {
  double everywhere = 0;
  std::vector<double> at_atom;
};
LogitGradient ReferenceGradient(Proximity proximity, Support support, const TokenView& token);

}  // namespace augur
