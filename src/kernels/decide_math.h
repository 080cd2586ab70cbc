// What the CPU and CUDA kernels share: from sums over the support to one token's decision.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/random.h"  // AUGUR_HOST_DEVICE
#include "kernels/decide.h"

namespace augur {

// Sums over the used columns of one token. s is sign(mu - pi).
struct SupportSums {
  double count = 0;
  double mu = 0;             // sum of mu
  double pi = 0;             // sum of pi
  double kl = 0;             // sum of mu (log mu - log pi)
  double gap = 0;            // sum of |mu - pi|
  double coupling = 0;       // sum of pi (mu - pi)
  double square = 0;         // sum of pi^2
  double signed_pi = 0;      // sum of s pi
  double signed_square = 0;  // sum of s pi^2
};

struct SampledToken {
  double log_mu, log_pi, mu, pi;
};

AUGUR_HOST_DEVICE double SignOf(double x) { return (x > 0) - (x < 0); }

// Adds one used column.
AUGUR_HOST_DEVICE void Accumulate(SupportSums* sums, double log_mu, double log_pi, double mu, double pi) {
  const double sign = SignOf(mu - pi);
  sums->count += 1;
  sums->mu += mu;
  sums->pi += pi;
  sums->kl += mu * (log_mu - log_pi);
  sums->gap += fabs(mu - pi);
  sums->coupling += pi * (mu - pi);
  sums->square += pi * pi;
  sums->signed_pi += sign * pi;
  sums->signed_square += sign * pi * pi;
}

// The tail bucket that completes the sums to a distribution.
struct Tail {
  double mu = 0, pi = 0;
  double square = 0;  // its share of sum pi^2 under the rule's tail model
  bool clamped = false;
};

// Restricts the sums to the sampled token and returns what that moves into the tail.
AUGUR_HOST_DEVICE SupportSums FoldIntoBinary(SupportSums* sums, const SampledToken& y) {
  SupportSums folded;
  folded.pi = sums->pi - y.pi;
  folded.square = sums->square - y.pi * y.pi;
  *sums = SupportSums();
  Accumulate(sums, y.log_mu, y.log_pi, y.mu, y.pi);
  return folded;
}

AUGUR_HOST_DEVICE Tail MakeTail(const MaskRule& rule, const SupportSums& sums, const SupportSums& folded,
                                double vocab_size, const double* tail_square, const double* policy_tail) {
  Tail tail;
  const double unseen = vocab_size - sums.count;
  tail.clamped = sums.mu > 1 || (sums.pi > 1 && policy_tail == nullptr);
  if (unseen <= 0) return tail;
  tail.mu = fmax(1 - sums.mu, 0.0);
  tail.pi = policy_tail != nullptr ? *policy_tail + folded.pi : fmax(1 - sums.pi, 0.0);
  switch (rule.tail) {
    case TailModel::kAggregated:
      tail.square = tail.pi * tail.pi;
      break;
    case TailModel::kUniform:
      tail.square = tail.pi * tail.pi / unseen;
      break;
    case TailModel::kExact:
      tail.square = (tail_square != nullptr ? *tail_square : 0.0) + folded.square;
      break;
  }
  return tail;
}

AUGUR_HOST_DEVICE double TokenDivergence(Proximity proximity, const SupportSums& sums, const Tail& tail) {
  if (proximity == Proximity::kTv) return (sums.gap + fabs(tail.mu - tail.pi)) / 2;
  constexpr double kSmallestNormalFloat = 1.17549435082228750797e-38;
  const double tail_term = tail.mu > 0 ? tail.mu * log(tail.mu / fmax(tail.pi, kSmallestNormalFloat)) : 0.0;
  // Written so that a NaN stays one.
  const double kl = sums.kl + tail_term;
  return kl < 0 ? 0.0 : kl;
}

AUGUR_HOST_DEVICE double PredictedChange(Proximity proximity, const SupportSums& sums, const Tail& tail,
                                         const SampledToken& y) {
  if (proximity == Proximity::kTv) {
    const double c = y.pi - sums.square - tail.square;
    const double head = SignOf(y.mu - y.pi) * y.pi - sums.signed_square - c * sums.signed_pi;
    return -(head + SignOf(tail.mu - tail.pi) * (-tail.square - c * tail.pi)) / 2;
  }
  const double tail_term = tail.pi > 0 ? tail.square * (tail.mu - tail.pi) / tail.pi : 0.0;
  return (y.pi - y.mu) + sums.coupling + tail_term;
}

struct Decided {
  double ratio = 1, divergence = 0, direction = 0;
  uint8_t flags = kMissing;
};

// tail_square and policy_tail point to this token's values, or are null.
AUGUR_HOST_DEVICE Decided DecideToken(const MaskRule& rule, SupportSums sums, const SampledToken& y,
                                      double advantage, double vocab_size, const double* tail_square,
                                      const double* policy_tail) {
  const SupportSums folded = rule.support == Support::kBinary ? FoldIntoBinary(&sums, y) : SupportSums();
  const Tail tail = MakeTail(rule, sums, folded, vocab_size, tail_square, policy_tail);

  Decided out;
  const double log_ratio = y.log_pi - y.log_mu;
  // Selects rather than fmin/fmax, which would turn a NaN into a bound.
  out.ratio = exp(log_ratio > kLogRatioLimit    ? kLogRatioLimit
                  : log_ratio < -kLogRatioLimit ? -kLogRatioLimit
                                                : log_ratio);
  const double ratio_side = out.ratio - 1;
  bool outside = false;
  if (rule.proximity == Proximity::kRatio) {
    out.divergence = fabs(ratio_side);
    outside = ratio_side > rule.clip_high || ratio_side < -rule.clip_low;
  } else if (rule.proximity != Proximity::kNone) {
    out.divergence = TokenDivergence(rule.proximity, sums, tail);
    outside = out.divergence > (advantage < 0 && rule.delta_negative > 0 ? rule.delta_negative : rule.delta);
  }
  const double predicted = PredictedChange(rule.proximity, sums, tail, y);
  out.direction = rule.direction == Direction::kRatio ? ratio_side : predicted;

  const bool outward = advantage * out.direction > 0;
  const bool disagrees = outside && (advantage * ratio_side > 0) != (advantage * predicted > 0);
  const bool capped = rule.ratio_cap > 0 && out.ratio > rule.ratio_cap;
  out.flags = (outside && outward ? 0 : kKept) | (outside ? kOutside : 0) | (outward ? kOutward : 0) |
              (disagrees ? kDisagrees : 0) | (tail.clamped ? kMassClamped : 0) | (capped ? kCapped : 0);
  return out;
}

}  // namespace augur
