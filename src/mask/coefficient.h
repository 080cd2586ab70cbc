// What a rule makes of the ratio of a token's sampled atom: the bounds it is compared with, and the
// coefficient of a token that passes. R is the arithmetic (mask/arithmetic.h).
#pragma once

#include "mask/arithmetic.h"
#include "mask/rule.h"

namespace augur {

// By how much the ratio may be below and above 1.
template <typename R>
struct RatioBounds {
  R low, high;
};

template <typename R>
AUGUR_HOST_DEVICE RatioBounds<R> BoundsOf(const MaskRule& rule, R mu) {
  const R low = Splat<R>(rule.clip_low), high = Splat<R>(rule.clip_high);
  const R zero = Splat<R>(0), one = Splat<R>(1), half = Splat<R>(0.5);
  switch (rule.window) {
    case RatioWindow::kFixed:
      break;
    case RatioWindow::kRipo: {
      const R radius = Arithmetic<R>::Sqrt(Splat<R>(rule.delta) / mu);
      return {radius < low ? radius : low, radius < high ? radius : high};
    }
    case RatioWindow::kDcpo: {
      const R under = one - Splat<R>(4) * low / mu;
      const R below = half - half * Arithmetic<R>::Sqrt(under > zero ? under : zero);
      const R above = half * Arithmetic<R>::Sqrt(one + Splat<R>(4) * high / mu) - half;
      const R largest = Splat<R>(kDcpoLargestRatio - 1);
      return {below, above < largest ? above : largest};
    }
  }
  return {low, high};
}

// Of a token that is kept.
template <typename R>
AUGUR_HOST_DEVICE R Coefficient(const MaskRule& rule, R ratio, R mu, R advantage) {
  const R zero = Splat<R>(0), one = Splat<R>(1);
  const R away = ratio - one;
  switch (rule.weight) {
    case Weight::kRatio: {
      if (rule.ratio_cap == 0) return ratio;
      const R cap = Splat<R>(rule.ratio_cap);
      return ratio > cap ? cap : ratio;
    }
    case Weight::kSapo: {
      const R tau = advantage > zero ? Splat<R>(rule.tau_positive) : Splat<R>(rule.tau_negative);
      const R decay = Arithmetic<R>::Exp(-Arithmetic<R>::Abs(tau * away));
      return Splat<R>(4) * ratio * decay / ((one + decay) * (one + decay));
    }
    case Weight::kSpo:
      return ratio * (one - SignOf(advantage) * away / Splat<R>(rule.epsilon));
    case Weight::kDrpo:
      return ratio * (one - SignOf(advantage) * mu * away / Splat<R>(rule.epsilon));
    case Weight::kTopr:
      return ((advantage < zero) & (ratio < one)) ? ratio : one;
  }
  return ratio;
}

}  // namespace augur
