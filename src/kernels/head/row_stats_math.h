// What the CPU and CUDA sweeps share: running sums of a softmax that move with the largest value seen.
#pragma once

#include <cmath>

#include "base/random.h"  // AUGUR_HOST_DEVICE
#include "kernels/simd/exp2.h"

namespace augur {

// With m the largest z so far: sum of e^(z-m), of its square, and of e^(z-m) (z-m).
template <typename T>
struct SoftmaxSums {
  T max = -INFINITY;
  T sum = 0, square = 0, weighted = 0;

  // Makes `new_max` the reference point. new_max >= max.
  AUGUR_HOST_DEVICE void Rebase(T new_max) {
    if (!(new_max > max)) return;
    if (sum > 0) {
      const T shift = max - new_max;
      const T factor = exp(shift);
      weighted = factor * (weighted + shift * sum);
      sum *= factor;
      square *= factor * factor;
    }
    max = new_max;
  }

  AUGUR_HOST_DEVICE void Add(T z) {
    Rebase(z);
    const T e = z == max ? T(1) : exp(z - max);  // also right for -inf - -inf
    if (!(z > -INFINITY) && z == z) return;      // a -inf logit has no mass
    sum += e;
    square += e * e;
    weighted += z == max ? T(0) : e * (z - max);
  }

  AUGUR_HOST_DEVICE void Merge(SoftmaxSums other) {
    if (other.max > max) Rebase(other.max);
    other.Rebase(max);
    sum += other.sum;
    square += other.square;
    weighted += other.weighted;
  }
};

inline constexpr int kSweepGroup = 8;  // elements a thread takes at a time

// One thread's sums on a GPU over capped logits u: of e, e^2 and e y with y = u / temperature in powers of
// two less `max`, e = 2^y. `max` is the largest seen, or set beforehand to what all are measured from.
template <typename T>
struct ThreadSums {
  T to_power;  // log2(e) / temperature
  T least;     // logits up to this one count for nothing
  T max = -INFINITY;
  T sum = 0, square = 0, weighted = 0;

  AUGUR_HOST_DEVICE void RaiseMax(T top) {
    if (!(top > least)) return;
    top *= to_power;
    if (!(top > max)) return;
    const T shift = sum > 0 ? max - top : T(0);
    const T factor = Exp2(shift);
    weighted = factor * (weighted + shift * sum);
    sum *= factor;
    square *= factor * factor;
    max = top;
  }

  // What y is less. Where only nothing has been seen yet, 0: measured from themselves, numbers of that size
  // would be far from 0 by their rounding.
  AUGUR_HOST_DEVICE T Reference() const { return max > -INFINITY ? max : T(0); }

  // u is finite. Returns e.
  AUGUR_HOST_DEVICE T AddOne(T u, T reference) {
    const T y = fma(u, to_power, -reference);
    const T e = Exp2(y);
    sum += e;
    square += e * e;
    weighted += e * y;
    return e;
  }

  // u may be -inf, or so far below that its y would be: then it adds nothing.
  AUGUR_HOST_DEVICE T AddAny(T u, T reference) {
    return u < static_cast<T>(-1e30) ? T(0) : AddOne(u, reference);
  }

  AUGUR_HOST_DEVICE void Add(const T u[kSweepGroup]) {
    T top = u[0];
    for (int i = 1; i < kSweepGroup; ++i) top = fmax(top, u[i]);
    RaiseMax(top);
    const T reference = Reference();
    for (int i = 0; i < kSweepGroup; ++i) AddAny(u[i], reference);
  }

  AUGUR_HOST_DEVICE SoftmaxSums<T> InNaturalUnits() const {
    SoftmaxSums<T> out;
    out.max = max * static_cast<T>(kLn2);
    out.sum = sum;
    out.square = square;
    out.weighted = weighted * static_cast<T>(kLn2);
    return out;
  }
};

// z of a logit; see LogitRows.
template <typename T>
struct LogitScale {
  T inverse_temperature, softcap;

  AUGUR_HOST_DEVICE T operator()(T logit) const {
    return (softcap > 0 ? softcap * tanh(logit / softcap) : logit) * inverse_temperature;
  }
  // dz / dlogit where the logit's z is given.
  AUGUR_HOST_DEVICE T Slope(T z) const {
    if (!(softcap > 0)) return inverse_temperature;
    const T t = z / (softcap * inverse_temperature);
    return (1 - t * t) * inverse_temperature;
  }
};

}  // namespace augur
