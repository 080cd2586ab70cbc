// 2^x as the GPU's own instruction gives it, to two units in the last place; followed on the CPU by exp2.
#pragma once

#include <cmath>

#include "base/random.h"  // AUGUR_HOST_DEVICE

namespace augur {

inline constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;

AUGUR_HOST_DEVICE float Exp2(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}
AUGUR_HOST_DEVICE double Exp2(double x) { return exp2(x); }

}  // namespace augur
