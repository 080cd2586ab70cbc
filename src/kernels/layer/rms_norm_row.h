// One row of an RMSNorm, shared by the norm over hidden states and the one over query and key heads.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/simd/lanes.h"

namespace augur {
inline namespace AUGUR_LANES {

inline float InverseRms(const float* x, int64_t width, float eps) {
  // Many sums, so that none waits for the addition before.
  constexpr int kSums = 8;
  double sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= width; i += kSums) {
    for (int j = 0; j < kSums; ++j) sums[j] += static_cast<double>(x[i + j]) * x[i + j];
  }
  for (; i < width; ++i) sums[0] += static_cast<double>(x[i]) * x[i];
  double squares = 0;
  for (const double sum : sums) squares += sum;
  return static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(width) + eps));
}

// grad_x from grad_y for y = x * inverse * weight; adds to grad_weight. grad_x may be grad_y.
inline void RmsNormRowBackward(int64_t width, const float* x, const float* weight, float inverse,
                               const float* grad_y, float* grad_x, float* grad_weight) {
  double along = 0;
#pragma omp simd reduction(+ : along)
  for (int64_t i = 0; i < width; ++i) {
    along += static_cast<double>(weight[i] * grad_y[i]) * x[i];
    grad_weight[i] += grad_y[i] * x[i] * inverse;
  }
  const auto back = static_cast<float>(along * inverse * inverse * inverse / static_cast<double>(width));
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) grad_x[i] = weight[i] * grad_y[i] * inverse - x[i] * back;
}

}  // namespace AUGUR_LANES
}  // namespace augur
