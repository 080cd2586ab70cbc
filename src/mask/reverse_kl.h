// Reverse KL: D = sum pi log(pi / mu), over the support and the tail.
#pragma once

#include "mask/divergence.h"

namespace augur {

struct ReverseKl {
  // mu_tail is floored here: one minus recorded float32 probabilities knows it no better.
  static constexpr double kSmallestTail = 0x1p-24;

  // l is log(pi / mu).
  template <typename R>
  struct Sums {
    R weighted{};  // sum of pi l
    R squared{};   // sum of pi^2 l

    AUGUR_HOST_DEVICE void Add(const Atom<R>& a) {
      const R term = Weighted(a);
      weighted += term;
      squared += a.pi * term;
    }
  };

  template <typename R>
  static AUGUR_HOST_DEVICE R Value(const SupportSums<ReverseKl, R>& sums, const Tail<R>& tail) {
    const R zero = Splat<R>(0);
    const R kl = sums.own.weighted + tail.pi * LogRatio(tail);
    return kl < zero ? zero : kl;  // a NaN stays one
  }

  // sum l_i pi_i (v_i - c), with v the gradient of log pi(y) and c = sum pi_j v_j.
  template <typename R>
  static AUGUR_HOST_DEVICE R Change(const SupportSums<ReverseKl, R>& sums, const Tail<R>& tail,
                                    const Atom<R>& y) {
    const R c = y.pi - sums.square - tail.square;
    const R head = Weighted(y) - sums.own.squared - c * sums.own.weighted;
    return head - (tail.square + c * tail.pi) * LogRatio(tail);
  }

  // pi_j (l_j - D).
  template <typename R>
  static AUGUR_HOST_DEVICE R GradientEverywhere(const SupportSums<ReverseKl, R>& sums, const Tail<R>& tail) {
    const R logarithm = LogRatio(tail);
    return logarithm - (sums.own.weighted + tail.pi * logarithm);
  }
  template <typename R>
  static AUGUR_HOST_DEVICE R GradientAtAtom(const Tail<R>& tail, const Atom<R>& a) {
    return Weighted(a) - a.pi * LogRatio(tail);
  }

  // The tail's logarithm carries the error of mu_tail, and a large D cancels in the change.
  template <typename R>
  static AUGUR_HOST_DEVICE R FloatError(R value, const Tail<R>& tail, bool tail_known) {
    const R unit = Splat<R>(kFloatTailError), zero = Splat<R>(0), one = Splat<R>(1);
    R error = unit * tail.pi / Floored(tail);
    if (!tail_known) error += tail.pi > zero ? unit * Arithmetic<R>::Abs(LogRatio(tail)) : zero;
    return value < Splat<R>(2) ? error : one;
  }

 private:
  // An atom that pi has left counts nothing, although its logarithm may be infinite. A NaN stays one.
  template <typename R>
  static AUGUR_HOST_DEVICE R Weighted(const Atom<R>& a) {
    return a.pi < Splat<R>(1e-37) ? Splat<R>(0) : a.pi * (a.log_pi - a.log_mu);
  }
  template <typename R>
  static AUGUR_HOST_DEVICE R Floored(const Tail<R>& tail) {
    const R smallest = Splat<R>(kSmallestTail);
    return tail.mu > smallest ? tail.mu : smallest;
  }
  template <typename R>
  static AUGUR_HOST_DEVICE R LogRatio(const Tail<R>& tail) {
    const Mask<R> present = tail.pi > Splat<R>(0);
    return Arithmetic<R>::Log(present ? tail.pi / Floored(tail) : Splat<R>(1));
  }
};

}  // namespace augur
