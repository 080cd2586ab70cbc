// The arithmetic that masks are computed in: double, float, or on the CPU `Floats`, four tokens at once.
//
// Code over an arithmetic R selects where it would otherwise branch, and its conditions are masks.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace augur {

// How a type of arithmetic spells conditions and flags. kernels/head/decide_cpu.cc adds Floats.
template <typename R>
struct Arithmetic {
  using Mask = bool;
  using Flags = uint8_t;
  static AUGUR_HOST_DEVICE R Splat(double x) { return static_cast<R>(x); }
  static AUGUR_HOST_DEVICE Flags Bit(Mask mask, uint8_t bit) { return mask ? bit : 0; }
  static AUGUR_HOST_DEVICE R Exp(R x) { return std::exp(x); }
  static AUGUR_HOST_DEVICE R Log(R x) { return std::log(x); }
  static AUGUR_HOST_DEVICE R Sqrt(R x) { return std::sqrt(x); }
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

}  // namespace augur
