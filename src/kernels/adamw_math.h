// The update of one element, for CPU and CUDA alike.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/random.h"
#include "kernels/adamw.h"

namespace augur {

// The settings as the inner loop wants them.
struct AdamWFactors {
  float decay, beta1, beta2, rest1, rest2, step_size, root2, eps, grad_scale;
  uint64_t place, step;

  static AdamWFactors From(const AdamWSettings& s) {
    const double bias1 = 1 - std::pow(s.beta1, static_cast<double>(s.step));
    const double bias2 = 1 - std::pow(s.beta2, static_cast<double>(s.step));
    return {static_cast<float>(1 - s.lr * s.weight_decay),
            static_cast<float>(s.beta1),
            static_cast<float>(s.beta2),
            static_cast<float>(1 - s.beta1),
            static_cast<float>(1 - s.beta2),
            static_cast<float>(s.lr / bias1),
            static_cast<float>(1 / std::sqrt(bias2)),
            static_cast<float>(s.eps),
            static_cast<float>(s.grad_scale),
            s.place,
            static_cast<uint64_t>(s.step)};
  }
};

AUGUR_HOST_DEVICE void AdamWElement(const AdamWFactors& f, float gradient, float* parameter, float* first,
                                    float* second) {
  const float g = gradient * f.grad_scale;
  *first = *first + f.rest1 * (g - *first);
  *second = f.beta2 * *second + f.rest2 * g * g;
  *parameter = *parameter * f.decay - f.step_size * (*first / (std::sqrt(*second) * f.root2 + f.eps));
}

// The upper 16 bits of a finite value, carried up with the probability that keeps the mean.
AUGUR_HOST_DEVICE uint16_t RoundAtRandom(uint32_t value_bits, uint32_t random) {
  return static_cast<uint16_t>((value_bits + (random & 0xffffu)) >> 16);
}

// The same of any value: what is not finite stays so.
AUGUR_HOST_DEVICE uint16_t RoundFiniteAtRandom(uint32_t value_bits, uint32_t random) {
  return RoundAtRandom(value_bits, (value_bits & 0x7f800000u) == 0x7f800000u ? 0 : random);
}

}  // namespace augur
