// What the CPU and CUDA kernels share: from sums over the support to one token's decision.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/random.h"  // AUGUR_HOST_DEVICE
#include "kernels/decide.h"

namespace augur {

// Sums over the used columns of one token, in float or double. s is sign(mu - pi).
template <typename R>
struct SupportSums {
  R count = 0;
  R mu = 0;             // sum of mu
  R pi = 0;             // sum of pi
  R kl = 0;             // sum of mu (log mu - log pi)
  R gap = 0;            // sum of |mu - pi|
  R coupling = 0;       // sum of pi (mu - pi)
  R square = 0;         // sum of pi^2
  R signed_pi = 0;      // sum of s pi
  R signed_square = 0;  // sum of s pi^2
};

template <typename R>
struct SampledToken {
  R log_mu, log_pi, mu, pi;
};

template <typename R>
AUGUR_HOST_DEVICE R SignOf(R x) {
  return static_cast<R>((x > 0) - (x < 0));
}

// Adds one used column; the sums that only the other divergence needs are left out.
template <bool kTv, typename R>
AUGUR_HOST_DEVICE void Accumulate(SupportSums<R>* sums, R log_mu, R log_pi, R mu, R pi) {
  sums->count += 1;
  sums->mu += mu;
  sums->pi += pi;
  sums->square += pi * pi;
  if constexpr (kTv) {
    const R sign = SignOf(log_mu - log_pi);  // of mu - pi, but not blurred by the exponentials
    sums->gap += std::abs(mu - pi);
    sums->signed_pi += sign * pi;
    sums->signed_square += sign * pi * pi;
  } else {
    sums->kl += mu * (log_mu - log_pi);
    sums->coupling += pi * (mu - pi);
  }
}

// The tail bucket that completes the sums to a distribution.
template <typename R>
struct Tail {
  R mu = 0, pi = 0;
  R square = 0;  // its share of sum pi^2 under the rule's tail model
  bool clamped = false;
};

// What the rule and the batch say about one token beside its support.
template <typename R>
struct TokenFacts {
  R advantage = 0;
  R vocab_size = 0;
  R tail_square = 0;
  bool has_policy_tail = false;
  R policy_tail = 0;
};

// Restricts the sums to the sampled token and returns what that moves into the tail.
template <bool kTv, typename R>
AUGUR_HOST_DEVICE SupportSums<R> FoldIntoBinary(SupportSums<R>* sums, const SampledToken<R>& y) {
  SupportSums<R> folded;
  folded.pi = sums->pi - y.pi;
  folded.square = sums->square - y.pi * y.pi;
  *sums = SupportSums<R>();
  Accumulate<kTv>(sums, y.log_mu, y.log_pi, y.mu, y.pi);
  return folded;
}

template <typename R>
AUGUR_HOST_DEVICE Tail<R> MakeTail(const MaskRule& rule, const SupportSums<R>& sums,
                                   const SupportSums<R>& folded, const TokenFacts<R>& facts) {
  Tail<R> tail;
  const R unseen = facts.vocab_size - sums.count;
  tail.clamped = sums.mu > 1 || (sums.pi > 1 && !facts.has_policy_tail);
  if (unseen <= 0) return tail;
  tail.mu = sums.mu < 1 ? 1 - sums.mu : R(0);
  tail.pi = facts.has_policy_tail ? facts.policy_tail + folded.pi : sums.pi < 1 ? 1 - sums.pi : R(0);
  switch (rule.tail) {
    case TailModel::kAggregated:
      tail.square = tail.pi * tail.pi;
      break;
    case TailModel::kUniform:
      tail.square = tail.pi * tail.pi / unseen;
      break;
    case TailModel::kExact:
      tail.square = facts.tail_square + folded.square;
      break;
  }
  return tail;
}

template <bool kTv, typename R>
AUGUR_HOST_DEVICE R TokenDivergence(const SupportSums<R>& sums, const Tail<R>& tail) {
  if constexpr (kTv) return (sums.gap + std::abs(tail.mu - tail.pi)) / 2;
  constexpr R kSmallestNormalFloat = 1.17549435e-38f;
  const R floored = tail.pi > kSmallestNormalFloat ? tail.pi : kSmallestNormalFloat;
  const R tail_term = tail.mu > 0 ? tail.mu * std::log(tail.mu / floored) : R(0);
  const R kl = sums.kl + tail_term;
  return kl < 0 ? R(0) : kl;  // a NaN stays one
}

template <bool kTv, typename R>
AUGUR_HOST_DEVICE R PredictedChange(const SupportSums<R>& sums, const Tail<R>& tail,
                                    const SampledToken<R>& y) {
  if constexpr (kTv) {
    const R c = y.pi - sums.square - tail.square;
    const R head = SignOf(y.log_mu - y.log_pi) * y.pi - sums.signed_square - c * sums.signed_pi;
    return -(head + SignOf(tail.mu - tail.pi) * (-tail.square - c * tail.pi)) / 2;
  } else {
    const R tail_term = tail.pi > 0 ? tail.square * (tail.mu - tail.pi) / tail.pi : R(0);
    return (y.pi - y.mu) + sums.coupling + tail_term;
  }
}

template <typename R, typename T>
AUGUR_HOST_DEVICE TokenFacts<R> FactsOf(const DecideInput<T>& in, int64_t t) {
  TokenFacts<R> facts;
  facts.advantage = static_cast<R>(in.advantage[t]);
  facts.vocab_size = static_cast<R>(in.vocab_size);
  facts.tail_square = in.tail_square ? static_cast<R>(in.tail_square[t]) : R(0);
  facts.has_policy_tail = in.policy_tail != nullptr;
  facts.policy_tail = in.policy_tail ? static_cast<R>(in.policy_tail[t]) : R(0);
  return facts;
}

template <typename R>
struct Decided {
  R ratio = 1, divergence = 0, direction = 0;
  uint8_t flags = kMissing;
  // The float computation could fall on the other side of a boundary, or its tail has cancelled: ask double.
  bool delicate = false;
};

// Bounds on what float rounding does to the divergence and to the predicted change of one token.
template <bool kTv, typename R>
AUGUR_HOST_DEVICE bool IsDelicate(const TokenFacts<R>& facts, const Tail<R>& tail, R divergence, R delta,
                                  R direction, bool is_divergence, bool is_predicted) {
  constexpr R kRounding = 2e-6f;
  // One minus a float sum is off by a few units of 1e-7, which a small tail turns into an error of its
  // logarithm.
  const R tail_error =
      facts.has_policy_tail || tail.pi >= tail.mu ? R(0) : R(5e-7f) * tail.mu / (tail.pi + R(1e-9f));
  const R error = kRounding * (1 + divergence) + tail_error;
  // Total variation's change jumps where the tails are equal.
  if (kTv && tail.pi > kRounding && !(std::abs(tail.mu - tail.pi) > kRounding)) return true;
  if (is_divergence && (tail_error > kRounding || !(std::abs(divergence - delta) > error))) return true;
  return is_predicted && divergence > delta && !(std::abs(direction) > kRounding);
}

template <bool kTv, typename R>
AUGUR_HOST_DEVICE Decided<R> DecideToken(const MaskRule& rule, SupportSums<R> sums, const SampledToken<R>& y,
                                         const TokenFacts<R>& facts) {
  const SupportSums<R> folded =
      rule.support == Support::kBinary ? FoldIntoBinary<kTv>(&sums, y) : SupportSums<R>();
  const Tail<R> tail = MakeTail(rule, sums, folded, facts);

  Decided<R> out;
  const R log_ratio = y.log_pi - y.log_mu;
  constexpr R kLimit = kLogRatioLimit;
  // Selects rather than fmin/fmax, which would turn a NaN into a bound.
  out.ratio = std::exp(log_ratio > kLimit ? kLimit : log_ratio < -kLimit ? -kLimit : log_ratio);
  const R ratio_side = out.ratio - 1;
  const R delta =
      static_cast<R>(facts.advantage < 0 && rule.delta_negative > 0 ? rule.delta_negative : rule.delta);
  const bool is_divergence = rule.proximity == Proximity::kKl || rule.proximity == Proximity::kTv;
  bool outside = false;
  if (rule.proximity == Proximity::kRatio) {
    out.divergence = std::abs(ratio_side);
    outside = ratio_side > static_cast<R>(rule.clip_high) || ratio_side < -static_cast<R>(rule.clip_low);
  } else if (is_divergence) {
    out.divergence = TokenDivergence<kTv>(sums, tail);
    outside = out.divergence > delta;
  }
  const R predicted = PredictedChange<kTv>(sums, tail, y);
  const bool is_predicted = rule.direction == Direction::kPredicted;
  out.direction = is_predicted ? predicted : ratio_side;

  const bool outward = facts.advantage * out.direction > 0;
  const bool disagrees = outside && (facts.advantage * ratio_side > 0) != (facts.advantage * predicted > 0);
  const bool capped = rule.ratio_cap > 0 && out.ratio > static_cast<R>(rule.ratio_cap);
  out.flags = (outside && outward ? 0 : kKept) | (outside ? kOutside : 0) | (outward ? kOutward : 0) |
              (disagrees ? kDisagrees : 0) | (tail.clamped ? kMassClamped : 0) | (capped ? kCapped : 0);
  out.delicate = IsDelicate<kTv>(facts, tail, out.divergence, delta, predicted, is_divergence, is_predicted);
  return out;
}

// One token of a batch in double, column by column: what the kernels fall back to where float is not enough.
template <bool kTv, typename T>
AUGUR_HOST_DEVICE Decided<double> DecideTokenInDouble(const MaskRule& rule, const DecideInput<T>& in,
                                                      int64_t t) {
  const T* behaviour = in.behaviour + t * in.columns;
  const T* policy = in.policy + t * in.columns;
  SupportSums<double> sums;
  for (int c = 0; c < in.columns; ++c) {
    const double log_mu = behaviour[c], log_pi = policy[c];
    if (behaviour[c] != static_cast<T>(-INFINITY)) {
      Accumulate<kTv>(&sums, log_mu, log_pi, std::exp(log_mu), std::exp(log_pi));
    }
  }
  const double log_mu = behaviour[0], log_pi = policy[0];
  return DecideToken<kTv>(rule, sums,
                          SampledToken<double>{log_mu, log_pi, std::exp(log_mu), std::exp(log_pi)},
                          FactsOf<double>(in, t));
}

}  // namespace augur
