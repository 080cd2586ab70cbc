// What the CPU and CUDA kernels share: from sums over the support to a decision.
//
// R is the arithmetic: double, float, or on the CPU `Floats`, four tokens at once. The code therefore selects
// where it would otherwise branch, and its conditions are masks.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/random.h"  // AUGUR_HOST_DEVICE
#include "kernels/head/decide.h"

namespace augur {

// How a type of arithmetic spells conditions and flags. vector_math.h adds Floats.
template <typename R>
struct Arithmetic {
  using Mask = bool;
  using Flags = uint8_t;
  static AUGUR_HOST_DEVICE R Splat(double x) { return static_cast<R>(x); }
  static AUGUR_HOST_DEVICE Flags Bit(Mask mask, uint8_t bit) { return mask ? bit : 0; }
  static AUGUR_HOST_DEVICE R Exp(R x) { return std::exp(x); }
  static AUGUR_HOST_DEVICE R Log(R x) { return std::log(x); }
  static AUGUR_HOST_DEVICE R Abs(R x) { return std::abs(x); }
};

template <typename R>
using Mask = typename Arithmetic<R>::Mask;

template <typename R>
AUGUR_HOST_DEVICE R Splat(double x) {
  return Arithmetic<R>::Splat(x);
}

template <typename R>
AUGUR_HOST_DEVICE R SignOf(R x) {
  const R one = Splat<R>(1), zero = Splat<R>(0);
  return (x > zero ? one : zero) - (x < zero ? one : zero);
}

// Sums over the used columns of one token. s is sign(mu - pi).
template <typename R>
struct SupportSums {
  R count{};
  R mu{};             // sum of mu
  R pi{};             // sum of pi
  R kl{};             // sum of mu (log mu - log pi)
  R gap{};            // sum of |mu - pi|
  R coupling{};       // sum of pi (mu - pi)
  R square{};         // sum of pi^2
  R signed_pi{};      // sum of s pi
  R signed_square{};  // sum of s pi^2
};

template <typename R>
struct SampledToken {
  R log_mu, log_pi, mu, pi;
};

// Adds one used column; the sums that only the other divergence needs are left out.
template <bool kTv, typename R>
AUGUR_HOST_DEVICE void Accumulate(SupportSums<R>* sums, R log_mu, R log_pi, R mu, R pi) {
  sums->mu += mu;
  sums->pi += pi;
  sums->square += pi * pi;
  if constexpr (kTv) {
    const R sign = SignOf(log_mu - log_pi);  // of mu - pi, but not blurred by the exponentials
    sums->gap += Arithmetic<R>::Abs(mu - pi);
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
  R mu{}, pi{};
  R square{};  // its share of sum pi^2 under the rule's tail model
  Mask<R> clamped{};
};

// What the batch says about one token beside its support.
template <typename R>
struct TokenFacts {
  R advantage{};
  R vocab_size{};
  R tail_square{};
  bool has_policy_tail = false;
  R policy_tail{};
};

// Restricts the sums to the sampled token and returns what that moves into the tail.
template <bool kTv, typename R>
AUGUR_HOST_DEVICE SupportSums<R> FoldIntoBinary(SupportSums<R>* sums, const SampledToken<R>& y) {
  SupportSums<R> folded;
  folded.pi = sums->pi - y.pi;
  folded.square = sums->square - y.pi * y.pi;
  *sums = SupportSums<R>();
  sums->count = Splat<R>(1);
  Accumulate<kTv>(sums, y.log_mu, y.log_pi, y.mu, y.pi);
  return folded;
}

template <typename R>
AUGUR_HOST_DEVICE Tail<R> MakeTail(const MaskRule& rule, const SupportSums<R>& sums,
                                   const SupportSums<R>& folded, const TokenFacts<R>& facts) {
  const R zero = Splat<R>(0), one = Splat<R>(1);
  const R unseen = facts.vocab_size - sums.count;
  const Mask<R> exists = unseen > zero;  // a support that is the whole vocabulary has no tail
  Tail<R> tail;
  tail.clamped = sums.mu > one;
  if (!facts.has_policy_tail) tail.clamped = tail.clamped | (sums.pi > one);
  const Mask<R> mu_left = exists & (sums.mu < one), pi_left = exists & (sums.pi < one);
  tail.mu = mu_left ? one - sums.mu : zero;
  if (facts.has_policy_tail) {
    tail.pi = exists ? facts.policy_tail + folded.pi : zero;
  } else {
    tail.pi = pi_left ? one - sums.pi : zero;
  }
  switch (rule.tail) {
    case TailModel::kAggregated:
      tail.square = tail.pi * tail.pi;
      break;
    case TailModel::kUniform:
      tail.square = tail.pi * tail.pi / (exists ? unseen : one);
      break;
    case TailModel::kExact:
      tail.square = exists ? facts.tail_square + folded.square : zero;
      break;
  }
  return tail;
}

template <bool kTv, typename R>
AUGUR_HOST_DEVICE R TokenDivergence(const SupportSums<R>& sums, const Tail<R>& tail) {
  const R zero = Splat<R>(0);
  if constexpr (kTv) return (sums.gap + Arithmetic<R>::Abs(tail.mu - tail.pi)) * Splat<R>(0.5);
  const R smallest_normal_float = Splat<R>(1.17549435082228750797e-38);
  const R floored = tail.pi > smallest_normal_float ? tail.pi : smallest_normal_float;
  const Mask<R> present = tail.mu > zero;
  const R logarithm = Arithmetic<R>::Log((present ? tail.mu : Splat<R>(1)) / floored);
  const R kl = sums.kl + (present ? tail.mu * logarithm : zero);
  return kl < zero ? zero : kl;  // a NaN stays one
}

template <bool kTv, typename R>
AUGUR_HOST_DEVICE R PredictedChange(const SupportSums<R>& sums, const Tail<R>& tail,
                                    const SampledToken<R>& y) {
  const R zero = Splat<R>(0);
  if constexpr (kTv) {
    const R c = y.pi - sums.square - tail.square;
    const R head = SignOf(y.log_mu - y.log_pi) * y.pi - sums.signed_square - c * sums.signed_pi;
    return (head + SignOf(tail.mu - tail.pi) * (-tail.square - c * tail.pi)) * Splat<R>(-0.5);
  } else {
    const Mask<R> present = tail.pi > zero;
    const R per_mass = tail.square / (present ? tail.pi : Splat<R>(1));
    return (y.pi - y.mu) + sums.coupling + (present ? per_mass * (tail.mu - tail.pi) : zero);
  }
}

template <typename R>
struct Decided {
  R ratio = Splat<R>(1), divergence{}, direction{};
  typename Arithmetic<R>::Flags flags = Arithmetic<R>::Bit(Splat<R>(1) > Splat<R>(0), kMissing);
  // The float computation could fall on the other side of a boundary, or its tail has cancelled: ask double.
  Mask<R> delicate{};
};

// Bounds on what float rounding does to the divergence and to the predicted change of one token.
template <bool kTv, typename R>
AUGUR_HOST_DEVICE Mask<R> IsDelicate(const MaskRule& rule, const TokenFacts<R>& facts, const Tail<R>& tail,
                                     R divergence, R delta, R predicted) {
  const R rounding = Splat<R>(2e-6), one = Splat<R>(1);
  const bool measures = rule.proximity == Proximity::kKl || rule.proximity == Proximity::kTv;
  const bool predicts = rule.direction == Direction::kPredicted;
  Mask<R> delicate{};
  R error = rounding * (one + divergence);
  if (measures && !facts.has_policy_tail) {
    // One minus a float sum is off by a few units of 1e-7, which a small tail turns into an error of its
    // logarithm.
    const Mask<R> small = tail.pi < tail.mu;
    const R tail_error = small ? Splat<R>(5e-7) * tail.mu / (tail.pi + Splat<R>(1e-9)) : Splat<R>(0);
    delicate = delicate | (tail_error > rounding);
    error += tail_error;
  }
  // Total variation's change jumps where the tails are equal.
  if (kTv) delicate = delicate | ((tail.pi > rounding) & !(Arithmetic<R>::Abs(tail.mu - tail.pi) > rounding));
  if (measures) delicate = delicate | !(Arithmetic<R>::Abs(divergence - delta) > error);
  if (predicts) delicate = delicate | ((divergence > delta) & !(Arithmetic<R>::Abs(predicted) > rounding));
  return delicate;
}

template <bool kTv, typename R>
AUGUR_HOST_DEVICE Decided<R> DecideToken(const MaskRule& rule, SupportSums<R> sums, const SampledToken<R>& y,
                                         const TokenFacts<R>& facts) {
  const R zero = Splat<R>(0);
  SupportSums<R> folded;
  if (rule.support == Support::kBinary) folded = FoldIntoBinary<kTv>(&sums, y);
  const Tail<R> tail = MakeTail(rule, sums, folded, facts);

  Decided<R> out;
  // Selects rather than minima and maxima, which would turn a NaN into a bound.
  const R limit = Splat<R>(kLogRatioLimit);
  R log_ratio = y.log_pi - y.log_mu;
  log_ratio = log_ratio > limit ? limit : log_ratio;
  log_ratio = log_ratio < -limit ? -limit : log_ratio;
  out.ratio = Arithmetic<R>::Exp(log_ratio);
  const R ratio_side = out.ratio - Splat<R>(1);
  R delta = Splat<R>(rule.delta);
  if (rule.delta_negative > 0) delta = facts.advantage < zero ? Splat<R>(rule.delta_negative) : delta;
  Mask<R> outside{};
  if (rule.proximity == Proximity::kRatio) {
    out.divergence = Arithmetic<R>::Abs(ratio_side);
    outside = (ratio_side > Splat<R>(rule.clip_high)) | (ratio_side < Splat<R>(-rule.clip_low));
  } else if (rule.proximity != Proximity::kNone) {
    out.divergence = TokenDivergence<kTv>(sums, tail);
    outside = out.divergence > delta;
  }
  const R predicted = PredictedChange<kTv>(sums, tail, y);
  out.direction = rule.direction == Direction::kPredicted ? predicted : ratio_side;

  const Mask<R> outward = facts.advantage * out.direction > zero;
  const Mask<R> by_ratio = facts.advantage * ratio_side > zero,
                by_prediction = facts.advantage * predicted > zero;
  Mask<R> capped{};
  if (rule.ratio_cap > 0) capped = out.ratio > Splat<R>(rule.ratio_cap);
  using A = Arithmetic<R>;
  out.flags = A::Bit(!(outside & outward), kKept) | A::Bit(outside, kOutside) | A::Bit(outward, kOutward) |
              A::Bit(outside & (by_ratio != by_prediction), kDisagrees) | A::Bit(tail.clamped, kMassClamped) |
              A::Bit(capped, kCapped);
  out.delicate = IsDelicate<kTv>(rule, facts, tail, out.divergence, delta, predicted);
  return out;
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

// One token of a batch in double, column by column: what the kernels fall back to where float is not enough.
template <bool kTv, typename T>
AUGUR_HOST_DEVICE Decided<double> DecideTokenInDouble(const MaskRule& rule, const DecideInput<T>& in,
                                                      int64_t t) {
  const T* behaviour = in.behaviour + t * in.columns;
  const T* policy = in.policy + t * in.columns;
  SupportSums<double> sums;
  for (int c = 0; c < in.columns; ++c) {
    const double log_mu = behaviour[c], log_pi = policy[c];
    if (behaviour[c] == static_cast<T>(-INFINITY)) continue;
    sums.count += 1;
    Accumulate<kTv>(&sums, log_mu, log_pi, std::exp(log_mu), std::exp(log_pi));
  }
  const double log_mu = behaviour[0], log_pi = policy[0];
  return DecideToken<kTv>(rule, sums,
                          SampledToken<double>{log_mu, log_pi, std::exp(log_mu), std::exp(log_pi)},
                          FactsOf<double>(in, t));
}

}  // namespace augur
