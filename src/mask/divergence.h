// What every divergence is computed from: the atoms of the support, and the tail that completes them.
//
// A divergence is one type in one file (kl.h, tv.h, reverse_kl.h); the float64 reference, the CPU and CUDA
// kernels and the loss all take it from there. With D the divergence and R the arithmetic it has:
//
//   Sums<R>                     what it adds up over the support: Add(atom), and nothing but values of type R
//   Value(sums, tail)           D, never below 0
//   Change(sums, tail, y)       the first-order change of D per unit step along the gradient of log pi(y)
//   Curvature(sums, tail, y)    the second-order one, where it has been worked out
//   GradientEverywhere(sums, tail), GradientAtAtom(tail, atom)
//                               the gradient of D in the logits: the first times pi_j for every token j, plus
//                               the second at each atom of the support
//   FloatError(value, tail, tail_known)
//                               by how much float32 may miss value and change beyond kFloatRounding (1 + D);
//                               tail_known: pi's tail was summed, not taken as one minus the rest
#pragma once

#include "mask/arithmetic.h"

namespace augur {

template <typename R>
struct Atom {
  R log_mu, log_pi, mu, pi;
};

// Sums over the atoms of one token's support.
template <typename D, typename R>
struct SupportSums {
  R count{};
  R mu{}, pi{};
  R square{};  // of pi^2
  R cube{};    // of pi^3
  typename D::template Sums<R> own{};

  AUGUR_HOST_DEVICE void Add(const Atom<R>& atom) {  // but for `count`
    mu += atom.mu;
    pi += atom.pi;
    const R squared = atom.pi * atom.pi;
    square += squared;
    cube += squared * atom.pi;
    own.Add(atom);
  }
};

// The bucket of everything outside the support.
template <typename R>
struct Tail {
  R mu{}, pi{};
  R square{};  // its share of sum pi^2 under the rule's tail model
  R cube{};    // and of sum pi^3
  Mask<R> clamped{};
};

inline constexpr double kFloatRounding = 2e-6;
// One minus a float sum is off by a few units of 1e-7.
inline constexpr double kFloatTailError = 5e-7;

}  // namespace augur
