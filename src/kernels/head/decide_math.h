// What the CPU and CUDA kernels share: from sums over the support to a decision. D is the divergence's type
// and R the arithmetic (mask/arithmetic.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/head/decide.h"
#include "mask/coefficient.h"
#include "mask/divergence.h"

namespace augur {

AUGUR_HOST_DEVICE Atom<double> AtomOf(double log_mu, double log_pi) {
  return {log_mu, log_pi, std::exp(log_mu), std::exp(log_pi)};
}

// What the batch says about one token in addition to its support.
template <typename R>
struct TokenFacts {
  R advantage{};
  R vocab_size{};
  R tail_square{}, tail_cube{};
  bool has_policy_tail = false;
  R policy_tail{};
};

// What a binary support counts into the tail: all atoms but the sampled one.
template <typename R>
struct FoldedAtoms {
  R pi{}, square{}, cube{};
};

// Restricts the sums to the sampled token.
template <typename D, typename R>
AUGUR_HOST_DEVICE FoldedAtoms<R> FoldIntoBinary(SupportSums<D, R>* sums, const Atom<R>& y) {
  const FoldedAtoms<R> folded{sums->pi - y.pi, sums->square - y.pi * y.pi, sums->cube - y.pi * y.pi * y.pi};
  *sums = SupportSums<D, R>();
  sums->count = Splat<R>(1);
  sums->Add(y);
  return folded;
}

template <typename D, typename R>
AUGUR_HOST_DEVICE Tail<R> MakeTail(const MaskRule& rule, const SupportSums<D, R>& sums,
                                   const FoldedAtoms<R>& folded, const TokenFacts<R>& facts) {
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
      tail.cube = tail.square * tail.pi;
      break;
    case TailModel::kUniform:
      tail.square = tail.pi * tail.pi / (exists ? unseen : one);
      tail.cube = tail.square * tail.pi / (exists ? unseen : one);
      break;
    case TailModel::kExact:
      tail.square = exists ? facts.tail_square + folded.square : zero;
      tail.cube = exists ? facts.tail_cube + folded.cube : zero;
      break;
  }
  return tail;
}

template <typename R>
struct Decided {
  R ratio = Splat<R>(1), divergence{}, direction{}, coefficient{};
  typename Arithmetic<R>::Flags flags = Arithmetic<R>::Bit(Splat<R>(1) > Splat<R>(0), kMissing);
  // The float computation could fall on the other side of a boundary, or its tail has cancelled: ask double.
  Mask<R> delicate{};
};

// Which side of the trust region a token is on.
template <typename R>
struct Placed {
  R distance{};
  Mask<R> outside{};
  R extra{};  // of the error of the distance and of its change, beyond rounding
  Mask<R> delicate{};
};

template <typename D, typename R>
AUGUR_HOST_DEVICE Placed<R> Place(const MaskRule& rule, const SupportSums<D, R>& sums, const Tail<R>& tail,
                                  const Atom<R>& y, const TokenFacts<R>& facts, R ratio, R delta) {
  const R rounding = Splat<R>(kFloatRounding), one = Splat<R>(1);
  using A = Arithmetic<R>;
  Placed<R> out;
  if (rule.proximity == Proximity::kRatio) {
    const R away = ratio - one;
    const RatioBounds<R> bounds = BoundsOf(rule, y.mu);
    out.distance = A::Abs(away);
    out.outside = (away > bounds.high) | (away < -bounds.low);
    out.delicate = (!(A::Abs(away - bounds.high) > rounding * (one + ratio + bounds.high))) |
                   (!(A::Abs(away + bounds.low) > rounding * (one + ratio)));
  } else if (IsDivergence(rule.proximity)) {
    out.distance = D::Value(sums, tail);
    out.outside = out.distance > delta;
    out.extra = D::FloatError(out.distance, tail, facts.has_policy_tail);
    const R error = rounding * (one + out.distance) + out.extra;
    out.delicate = (out.extra > rounding) | !(A::Abs(out.distance - delta) > error);
  }
  return out;
}

// What the divergence would be after a step of rule.eta along this update.
template <typename R>
struct Foreseen {
  R slope{};  // the mean change over the step, per unit of it and of the advantage's direction
  Mask<R> outside{}, delicate{};
};

template <typename D, typename R>
AUGUR_HOST_DEVICE Foreseen<R> Foresee(const SupportSums<D, R>& sums, const Tail<R>& tail, const Atom<R>& y,
                                      const Placed<R>& placed, R step, R predicted, R delta) {
  Foreseen<R> out;
  if constexpr (requires { D::Curvature(sums, tail, y); }) {
    out.slope = predicted + Splat<R>(0.5) * step * D::Curvature(sums, tail, y);
    const R change = step * out.slope, size = Arithmetic<R>::Abs(step);
    out.outside = placed.distance + change > delta;
    const R one = Splat<R>(1), rounding = Splat<R>(kFloatRounding);
    const R error = rounding * (one + placed.distance + Arithmetic<R>::Abs(change) + size + size * size) +
                    placed.extra * (one + size);
    out.delicate =
        (placed.extra > rounding) | !(Arithmetic<R>::Abs(placed.distance + change - delta) > error);
  }
  return out;
}

template <typename D, typename R>
AUGUR_HOST_DEVICE Decided<R> DecideToken(const MaskRule& rule, SupportSums<D, R> sums, const Atom<R>& y,
                                         const TokenFacts<R>& facts) {
  const R zero = Splat<R>(0);
  using A = Arithmetic<R>;
  FoldedAtoms<R> folded;
  if (rule.support == Support::kBinary) folded = FoldIntoBinary(&sums, y);
  const Tail<R> tail = MakeTail(rule, sums, folded, facts);

  Decided<R> out;
  // Selects rather than minima and maxima, which would turn a NaN into a bound.
  const R limit = Splat<R>(kLogRatioLimit);
  R log_ratio = y.log_pi - y.log_mu;
  log_ratio = log_ratio > limit ? limit : log_ratio;
  log_ratio = log_ratio < -limit ? -limit : log_ratio;
  out.ratio = A::Exp(log_ratio);
  const R ratio_side = out.ratio - Splat<R>(1);
  R delta = Splat<R>(rule.delta);
  if (rule.delta_negative > 0) delta = facts.advantage < zero ? Splat<R>(rule.delta_negative) : delta;
  const Placed<R> placed = Place<D>(rule, sums, tail, y, facts, out.ratio, delta);
  out.divergence = placed.distance;
  out.delicate = placed.delicate;
  const R predicted = D::Change(sums, tail, y);
  const R coefficient = Coefficient(rule, out.ratio, y.mu, facts.advantage);
  Mask<R> masked{};
  switch (rule.direction) {
    case Direction::kRatio:
      out.direction = ratio_side;
      break;
    case Direction::kPredicted: {
      const R error = Splat<R>(kFloatRounding) + placed.extra;
      out.direction = predicted;
      out.delicate = out.delicate | (placed.outside & !(A::Abs(predicted) > error));
      break;
    }
    case Direction::kSecondOrder: {
      const R step = Splat<R>(rule.eta) * facts.advantage * coefficient;
      const Foreseen<R> foreseen = Foresee<D>(sums, tail, y, placed, step, predicted, delta);
      out.direction = foreseen.slope;
      out.delicate = out.delicate | foreseen.delicate;
      masked = foreseen.outside & ((facts.advantage > zero) | (facts.advantage < zero));
      break;
    }
    case Direction::kAny:
      out.direction = SignOf(facts.advantage);
      break;
  }

  const Mask<R> outward = facts.advantage * out.direction > zero;
  const Mask<R> by_ratio = facts.advantage * ratio_side > zero,
                by_prediction = facts.advantage * predicted > zero;
  Mask<R> capped{}, dual_clipped{};
  if (rule.ratio_cap > 0) capped = out.ratio > Splat<R>(rule.ratio_cap);
  if (rule.dual_clip > 0) {
    dual_clipped = (facts.advantage < zero) & (out.ratio > Splat<R>(rule.dual_clip));
  }
  if (rule.direction != Direction::kSecondOrder) masked = placed.outside & outward;
  masked = masked | dual_clipped;
  out.coefficient = masked ? zero : coefficient;
  out.flags = A::Bit(!masked, kKept) | A::Bit(placed.outside | dual_clipped, kOutside) |
              A::Bit(outward, kOutward) |
              A::Bit(placed.outside & !dual_clipped & (by_ratio != by_prediction), kDisagrees) |
              A::Bit(tail.clamped, kMassClamped) | A::Bit(capped, kCapped);
  return out;
}

template <typename R, typename T>
AUGUR_HOST_DEVICE TokenFacts<R> FactsOf(const DecideInput<T>& in, int64_t t) {
  TokenFacts<R> facts;
  facts.advantage = static_cast<R>(in.advantage[t]);
  facts.vocab_size = static_cast<R>(in.vocab_size);
  facts.tail_square = in.tail_square ? static_cast<R>(in.tail_square[t]) : R(0);
  facts.tail_cube = in.tail_cube ? static_cast<R>(in.tail_cube[t]) : R(0);
  facts.has_policy_tail = in.policy_tail != nullptr;
  facts.policy_tail = in.policy_tail ? static_cast<R>(in.policy_tail[t]) : R(0);
  return facts;
}

// Adds column c to the sums in double; an unused one counts nothing.
template <typename D, typename T>
AUGUR_HOST_DEVICE void AddColumn(const T* behaviour, const T* policy, int c, SupportSums<D, double>* sums) {
  if (behaviour[c] == static_cast<T>(-INFINITY)) return;
  sums->count += 1;
  sums->Add(AtomOf(behaviour[c], policy[c]));
}

// One token of a batch in double, column by column: what the kernels fall back to where float is not enough.
template <typename D, typename T>
AUGUR_HOST_DEVICE Decided<double> DecideTokenInDouble(const MaskRule& rule, const DecideInput<T>& in,
                                                      int64_t t) {
  const T* behaviour = in.behaviour + t * in.columns;
  const T* policy = in.policy + t * in.columns;
  SupportSums<D, double> sums;
  for (int c = 0; c < in.columns; ++c) AddColumn(behaviour, policy, c, &sums);
  return DecideToken<D>(rule, sums, AtomOf(behaviour[0], policy[0]), FactsOf<double>(in, t));
}

}  // namespace augur
