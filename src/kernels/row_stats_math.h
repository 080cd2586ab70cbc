// What the CPU and CUDA sweeps share: running sums of a softmax that move with the largest value seen.
#pragma once

#include <cmath>

#include "base/random.h"  // AUGUR_HOST_DEVICE

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
