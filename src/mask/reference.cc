#include "mask/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace augur {
namespace {

constexpr double kUnused = -std::numeric_limits<double>::infinity();

struct Atom {
  double mu = 0, pi = 0;
  double log_mu = 0, log_pi = 0;
};

// The distributions over the support, with what lies outside it gathered in the tail.
struct Atoms {
  std::vector<Atom> head;  // head[0] is the sampled token
  double mu_tail = 0, pi_tail = 0;
  double tail_square = 0;  // sum of pi^2 over the tail
  double unseen = 0;       // how many tokens the tail stands for
  bool mass_clamped = false;
};

double Sign(double x) { return (x > 0) - (x < 0); }

Atoms Gather(Support support, const TokenView& token) {
  Atoms atoms;
  double mu_rest = 1, pi_rest = 1;
  double folded_pi = 0, folded_square = 0;  // support entries that a binary support counts into the tail
  for (size_t i = 0; i < token.behaviour.size(); ++i) {
    if (token.behaviour[i] == kUnused) continue;
    const Atom atom{std::exp(token.behaviour[i]), std::exp(token.policy[i]), token.behaviour[i],
                    token.policy[i]};
    if (support == Support::kBinary && i > 0) {
      folded_pi += atom.pi;
      folded_square += atom.pi * atom.pi;
      continue;
    }
    atoms.head.push_back(atom);
    mu_rest -= atom.mu;
    pi_rest -= atom.pi;
  }
  atoms.mass_clamped = mu_rest < 0 || (pi_rest < 0 && !token.policy_tail);
  atoms.unseen = static_cast<double>(token.vocab_size) - static_cast<double>(atoms.head.size());
  if (atoms.unseen >
      0) {  // a support that is the whole vocabulary has no tail, whatever rounding leaves over
    atoms.mu_tail = std::max(mu_rest, 0.0);
    atoms.pi_tail = token.policy_tail ? *token.policy_tail + folded_pi : std::max(pi_rest, 0.0);
    atoms.tail_square = token.tail_square + folded_square;
  }
  return atoms;
}

double Kl(const Atoms& atoms) {
  double kl = 0;
  for (const Atom& a : atoms.head) kl += a.mu * (a.log_mu - a.log_pi);
  if (atoms.mu_tail > 0) {
    const double floored = std::max(atoms.pi_tail, static_cast<double>(std::numeric_limits<float>::min()));
    kl += atoms.mu_tail * std::log(atoms.mu_tail / floored);
  }
  return std::max(kl, 0.0);
}

double Tv(const Atoms& atoms) {
  double sum = std::abs(atoms.mu_tail - atoms.pi_tail);
  for (const Atom& a : atoms.head) sum += std::abs(a.mu - a.pi);
  return sum / 2;
}

// The tail's share of sum_i pi_i^2 under each model.
double TailSquare(const Atoms& atoms, TailModel tail) {
  switch (tail) {
    case TailModel::kAggregated:
      return atoms.pi_tail * atoms.pi_tail;
    case TailModel::kUniform:
      return atoms.unseen > 0 ? atoms.pi_tail * atoms.pi_tail / atoms.unseen : 0;
    case TailModel::kExact:
      return atoms.tail_square;
  }
  return 0;
}

double KlChange(const Atoms& atoms, TailModel tail) {
  const double local = atoms.head[0].pi - atoms.head[0].mu;
  double global = 0;
  for (const Atom& a : atoms.head) global += a.pi * (a.mu - a.pi);
  if (atoms.pi_tail > 0) global += TailSquare(atoms, tail) * (atoms.mu_tail - atoms.pi_tail) / atoms.pi_tail;
  return local + global;
}

double TvChange(const Atoms& atoms, TailModel tail) {
  const double square = TailSquare(atoms, tail);
  double c = atoms.head[0].pi - square;  // sum_j pi_j v_j with v the gradient of log pi(sampled)
  for (const Atom& a : atoms.head) c -= a.pi * a.pi;
  double sum = 0;
  for (size_t i = 0; i < atoms.head.size(); ++i) {
    const Atom& a = atoms.head[i];
    sum += Sign(a.mu - a.pi) * a.pi * ((i == 0) - a.pi - c);
  }
  sum += Sign(atoms.mu_tail - atoms.pi_tail) * (-square - c * atoms.pi_tail);
  return -sum / 2;
}

double Threshold(const MaskRule& rule, double advantage) {
  return advantage < 0 && rule.delta_negative > 0 ? rule.delta_negative : rule.delta;
}

bool IsMissing(const TokenView& token) { return token.behaviour.empty() || token.behaviour[0] == kUnused; }

}  // namespace

double ReferenceDivergence(Proximity proximity, Support support, const TokenView& token) {
  const Atoms atoms = Gather(support, token);
  return proximity == Proximity::kTv ? Tv(atoms) : Kl(atoms);
}

double ReferenceChange(Proximity proximity, Support support, TailModel tail, const TokenView& token) {
  const Atoms atoms = Gather(support, token);
  return proximity == Proximity::kTv ? TvChange(atoms, tail) : KlChange(atoms, tail);
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
  switch (rule.proximity) {
    case Proximity::kNone:
      break;
    case Proximity::kRatio:
      decision.divergence = std::abs(ratio_side);
      decision.outside = ratio_side > rule.clip_high || ratio_side < -rule.clip_low;
      break;
    case Proximity::kKl:
    case Proximity::kTv:
      decision.divergence = ReferenceDivergence(rule.proximity, rule.support, token);
      decision.outside = decision.divergence > Threshold(rule, token.advantage);
      break;
  }
  decision.direction = rule.direction == Direction::kRatio ? ratio_side : predicted;
  decision.outward = token.advantage * decision.direction > 0;
  decision.keep = !(decision.outside && decision.outward);
  decision.disagree =
      decision.outside && (token.advantage * ratio_side > 0) != (token.advantage * predicted > 0);
  decision.mass_clamped = Gather(rule.support, token).mass_clamped;
  return decision;
}

}  // namespace augur
