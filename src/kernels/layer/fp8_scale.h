// Scales of numbers rounded to FP8 e4m3, alike on both devices.
#pragma once

#include <cmath>

#include "base/random.h"  // AUGUR_HOST_DEVICE

namespace augur {

inline constexpr float kLargestE4m3 = 448.0f;

// The scale that maps a row or channel with this largest magnitude onto the whole range; 1 for zeros.
AUGUR_HOST_DEVICE float E4m3Scale(float largest) { return largest > 0 ? largest / kLargestE4m3 : 1.0f; }

// The least power of two by which it fits.
AUGUR_HOST_DEVICE float E4m3PowerOfTwoScale(float largest) {
  if (!(largest > 0x1p-100f) || std::isinf(largest)) return 1.0f;
  int exponent = 0;
  const float fraction = frexpf(largest / kLargestE4m3, &exponent);  // in [0.5, 1)
  return ldexpf(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

}  // namespace augur
