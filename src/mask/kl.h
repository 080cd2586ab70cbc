// Forward KL: D = sum mu log(mu / pi), over the support and the tail.
#pragma once

#include "mask/divergence.h"

namespace augur {

struct Kl {
  // log pi_tail is floored here.
  static constexpr double kSmallestTail = 1.17549435082228750797e-38;  // float32's smallest normal

  template <typename R>
  struct Sums {
    R kl{};        // sum of mu (log mu - log pi)
    R coupling{};  // sum of pi (mu - pi)

    AUGUR_HOST_DEVICE void Add(const Atom<R>& a) {
      kl += a.mu * (a.log_mu - a.log_pi);
      coupling += a.pi * (a.mu - a.pi);
    }
  };

  template <typename R>
  static AUGUR_HOST_DEVICE R Value(const SupportSums<Kl, R>& sums, const Tail<R>& tail) {
    const R zero = Splat<R>(0), smallest = Splat<R>(kSmallestTail);
    const R floored = tail.pi > smallest ? tail.pi : smallest;
    const Mask<R> present = tail.mu > zero;
    const R logarithm = Arithmetic<R>::Log((present ? tail.mu : Splat<R>(1)) / floored);
    const R kl = sums.own.kl + (present ? tail.mu * logarithm : zero);
    return kl < zero ? zero : kl;  // a NaN stays one
  }

  // (pi_y - mu_y), what the ratio sees, + sum pi (mu - pi), what normalisation adds.
  template <typename R>
  static AUGUR_HOST_DEVICE R Change(const SupportSums<Kl, R>& sums, const Tail<R>& tail, const Atom<R>& y) {
    const Mask<R> present = tail.pi > Splat<R>(0);
    const R per_mass = tail.square / (present ? tail.pi : Splat<R>(1));
    return (y.pi - y.mu) + sums.own.coupling + (present ? per_mass * (tail.mu - tail.pi) : Splat<R>(0));
  }

  // Var_pi(v) with v the gradient of log pi(y); the tail's log-prob moves with the variance inside it, too.
  template <typename R>
  static AUGUR_HOST_DEVICE R Curvature(const SupportSums<Kl, R>& sums, const Tail<R>& tail,
                                       const Atom<R>& y) {
    const R zero = Splat<R>(0);
    const R mean = y.pi - sums.square - tail.square;
    const R variance = y.pi - Splat<R>(2) * y.pi * y.pi + sums.cube + tail.cube - mean * mean;
    const Mask<R> present = tail.pi > zero;
    const R mass = present ? tail.pi : Splat<R>(1);
    const R tail_mean = tail.square / mass;
    const R inside = tail.cube / mass - tail_mean * tail_mean;
    return variance - (present ? tail.mu * inside : zero);
  }

  // Where the tail's logarithm is floored it no longer moves: only the head's mass pulls.
  template <typename R>
  static AUGUR_HOST_DEVICE R GradientEverywhere(const SupportSums<Kl, R>& sums, const Tail<R>& tail) {
    const Mask<R> moves = tail.pi > Splat<R>(kSmallestTail);
    return sums.mu + (moves ? tail.mu : Splat<R>(0)) - TailRatio(tail);
  }
  template <typename R>
  static AUGUR_HOST_DEVICE R GradientAtAtom(const Tail<R>& tail, const Atom<R>& a) {
    return a.pi * TailRatio(tail) - a.mu;
  }

  // A small tail turns its error into one of its logarithm.
  template <typename R>
  static AUGUR_HOST_DEVICE R FloatError(R, const Tail<R>& tail, bool tail_known) {
    if (tail_known) return Splat<R>(0);
    const R error = Splat<R>(kFloatTailError) * tail.mu / (tail.pi + Splat<R>(1e-9));
    return tail.pi < tail.mu ? error : Splat<R>(0);
  }

 private:
  template <typename R>
  static AUGUR_HOST_DEVICE R TailRatio(const Tail<R>& tail) {
    const Mask<R> moves = tail.pi > Splat<R>(kSmallestTail);
    return moves ? tail.mu / (moves ? tail.pi : Splat<R>(1)) : Splat<R>(0);
  }
};

}  // namespace augur
