#include "mask/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "mask/coefficient.h"
#include "mask/divergences.h"

namespace augur {
namespace {

constexpr double kUnused = -std::numeric_limits<double>::infinity();

bool IsMissing(const TokenView& token) { return token.behaviour.empty() || token.behaviour[0] == kUnused; }

Atom<double> AtomAt(const TokenView& token, size_t i) {
  const double log_mu = token.behaviour[i], log_pi = token.policy[i];
  return {log_mu, log_pi, std::exp(log_mu), std::exp(log_pi)};
}

// One token's distributions over the atoms of `support`, as a divergence of type D sees them.
template <typename D>
struct Seen {
  SupportSums<D, double> sums;
  Tail<double> tail;
};

// The tail's share of sum pi^2 and sum pi^3 under each model; `square` and `cube` are the true ones.
void SetTailPowers(TailModel model, double unseen, double square, double cube, Tail<double>* tail) {
  const double pi = tail->pi;
  switch (model) {
    case TailModel::kAggregated:
      tail->square = pi * pi, tail->cube = pi * pi * pi;
      break;
    case TailModel::kUniform:
      tail->square = pi * pi / unseen, tail->cube = pi * pi * pi / (unseen * unseen);
      break;
    case TailModel::kExact:
      tail->square = square, tail->cube = cube;
      break;
  }
}

template <typename D>
Seen<D> See(Support support, TailModel model, const TokenView& token) {
  Seen<D> seen;
  // Support entries that a binary support counts into the tail.
  double folded_pi = 0, folded_square = 0, folded_cube = 0;
  for (size_t i = 0; i < token.behaviour.size(); ++i) {
    if (token.behaviour[i] == kUnused) continue;
    const Atom<double> atom = AtomAt(token, i);
    if (support == Support::kBinary && i > 0) {
      folded_pi += atom.pi;
      folded_square += atom.pi * atom.pi;
      folded_cube += atom.pi * atom.pi * atom.pi;
      continue;
    }
    seen.sums.count += 1;
    seen.sums.Add(atom);
  }
  const double mu_rest = 1 - seen.sums.mu, pi_rest = 1 - seen.sums.pi;
  seen.tail.clamped = mu_rest < 0 || (pi_rest < 0 && !token.policy_tail);
  const double unseen = static_cast<double>(token.vocab_size) - seen.sums.count;
  if (unseen > 0) {  // a support that is the whole vocabulary has no tail, whatever rounding leaves over
    seen.tail.mu = std::max(mu_rest, 0.0);
    seen.tail.pi = token.policy_tail ? *token.policy_tail + folded_pi : std::max(pi_rest, 0.0);
    SetTailPowers(model, unseen, token.tail_square + folded_square, token.tail_cube + folded_cube,
                  &seen.tail);
  }
  return seen;
}

double Threshold(const MaskRule& rule, double advantage) {
  return advantage < 0 && rule.delta_negative > 0 ? rule.delta_negative : rule.delta;
}

bool MassClamped(Support support, const TokenView& token) {
  return See<Kl>(support, TailModel::kAggregated, token).tail.clamped;
}

}  // namespace

double ReferenceDivergence(Proximity proximity, Support support, const TokenView& token) {
  return WithDivergence(proximity, [&]<typename D>(D) {
    const Seen<D> seen = See<D>(support, TailModel::kAggregated, token);
    return D::Value(seen.sums, seen.tail);
  });
}

double ReferenceChange(Proximity proximity, Support support, TailModel tail, const TokenView& token) {
  return WithDivergence(proximity, [&]<typename D>(D) {
    const Seen<D> seen = See<D>(support, tail, token);
    return D::Change(seen.sums, seen.tail, AtomAt(token, 0));
  });
}

double ReferenceCurvature(Support support, TailModel tail, const TokenView& token) {
  const Seen<Kl> seen = See<Kl>(support, tail, token);
  return Kl::Curvature(seen.sums, seen.tail, AtomAt(token, 0));
}

LogitGradient ReferenceGradient(Proximity proximity, Support support, const TokenView& token) {
  return WithDivergence(proximity, [&]<typename D>(D) {
    const Seen<D> seen = See<D>(support, TailModel::kAggregated, token);
    LogitGradient gradient{D::GradientEverywhere(seen.sums, seen.tail),
                           std::vector<double>(token.behaviour.size(), 0)};
    for (size_t i = 0; i < token.behaviour.size(); ++i) {
      if (token.behaviour[i] == kUnused || (support == Support::kBinary && i > 0)) continue;
      gradient.at_atom[i] = D::GradientAtAtom(seen.tail, AtomAt(token, i));
    }
    return gradient;
  });
}

TokenDecision DecideReference(const MaskRule& rule, const TokenView& token) {
  TokenDecision decision;
  if (IsMissing(token)) {
    decision.missing = true;
    decision.keep = false;
    return decision;
  }
  const double log_ratio = token.policy[0] - token.behaviour[0];
  decision.ratio = std::exp(std::clamp(log_ratio, -kLogRatioLimit, kLogRatioLimit));
  const double ratio_side = decision.ratio - 1;
  const double predicted = ReferenceChange(rule.proximity, rule.support, rule.tail, token);
  if (rule.proximity == Proximity::kRatio) {
    decision.divergence = std::abs(ratio_side);
    const RatioBounds<double> bounds = BoundsOf(rule, std::exp(token.behaviour[0]));
    decision.outside = ratio_side > bounds.high || ratio_side < -bounds.low;
  } else if (IsDivergence(rule.proximity)) {
    decision.divergence = ReferenceDivergence(rule.proximity, rule.support, token);
    decision.outside = decision.divergence > Threshold(rule, token.advantage);
  }
  const double coefficient = Coefficient(rule, decision.ratio, std::exp(token.behaviour[0]), token.advantage);
  const double step = rule.eta * token.advantage * coefficient;
  switch (rule.direction) {
    case Direction::kRatio:
      decision.direction = ratio_side;
      break;
    case Direction::kPredicted:
      decision.direction = predicted;
      break;
    case Direction::kSecondOrder:
      decision.direction = predicted + step / 2 * ReferenceCurvature(rule.support, rule.tail, token);
      break;
    case Direction::kAny:
      decision.direction = SignOf(token.advantage);
      break;
  }
  decision.outward = token.advantage * decision.direction > 0;
  const bool dual_clipped = rule.dual_clip > 0 && token.advantage < 0 && decision.ratio > rule.dual_clip;
  decision.disagree = decision.outside && !dual_clipped &&
                      (token.advantage * ratio_side > 0) != (token.advantage * predicted > 0);
  decision.outside = decision.outside || dual_clipped;
  if (rule.direction == Direction::kSecondOrder) {
    const double foreseen = decision.divergence + step * decision.direction;
    const bool beyond = foreseen > Threshold(rule, token.advantage);
    decision.keep = !((beyond && token.advantage != 0) || dual_clipped);
  } else {
    decision.keep = !(decision.outside && (decision.outward || dual_clipped));
  }
  if (decision.keep) decision.coefficient = coefficient;
  decision.mass_clamped = MassClamped(rule.support, token);
  return decision;
}

}  // namespace augur
