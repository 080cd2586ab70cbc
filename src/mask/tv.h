// Total variation: D = half the sum of |mu - pi|, over the support and the tail.
#pragma once

#include "mask/divergence.h"

namespace augur {

struct Tv {
  // s is sign(mu - pi).
  template <typename R>
  struct Sums {
    R gap{};            // sum of |mu - pi|
    R signed_pi{};      // sum of s pi
    R signed_square{};  // sum of s pi^2

    AUGUR_HOST_DEVICE void Add(const Atom<R>& a) {
      const R sign = SignAt(a);
      gap += Arithmetic<R>::Abs(a.mu - a.pi);
      signed_pi += sign * a.pi;
      signed_square += sign * a.pi * a.pi;
    }
  };

  template <typename R>
  static AUGUR_HOST_DEVICE R Value(const SupportSums<Tv, R>& sums, const Tail<R>& tail) {
    return (sums.own.gap + Arithmetic<R>::Abs(tail.mu - tail.pi)) * Splat<R>(0.5);
  }

  // -1/2 sum s_i pi_i (v_i - c), with v the gradient of log pi(y) and c = sum pi_j v_j.
  template <typename R>
  static AUGUR_HOST_DEVICE R Change(const SupportSums<Tv, R>& sums, const Tail<R>& tail, const Atom<R>& y) {
    const R c = y.pi - sums.square - tail.square;
    const R head = SignAt(y) * y.pi - sums.own.signed_square - c * sums.own.signed_pi;
    return (head + SignOf(tail.mu - tail.pi) * (-tail.square - c * tail.pi)) * Splat<R>(-0.5);
  }

  template <typename R>
  static AUGUR_HOST_DEVICE R GradientEverywhere(const SupportSums<Tv, R>& sums, const Tail<R>& tail) {
    const R sign = SignOf(tail.mu - tail.pi);
    return (sums.own.signed_pi + sign * tail.pi - sign) * Splat<R>(0.5);
  }
  template <typename R>
  static AUGUR_HOST_DEVICE R GradientAtAtom(const Tail<R>& tail, const Atom<R>& a) {
    return (SignOf(tail.mu - tail.pi) - SignAt(a)) * a.pi * Splat<R>(0.5);
  }

  // The change jumps where the tails are equal.
  template <typename R>
  static AUGUR_HOST_DEVICE R FloatError(R, const Tail<R>& tail, bool) {
    const R rounding = Splat<R>(kFloatRounding);
    const Mask<R> equal = (tail.pi > rounding) & !(Arithmetic<R>::Abs(tail.mu - tail.pi) > rounding);
    return equal ? Splat<R>(1) : Splat<R>(0);
  }

 private:
  // Of mu - pi, but not blurred by the exponentials.
  template <typename R>
  static AUGUR_HOST_DEVICE R SignAt(const Atom<R>& a) {
    return SignOf(a.log_mu - a.log_pi);
  }
};

}  // namespace augur
