// RMSNorm: y = round(x / sqrt(mean(x^2) + eps)) * weight, row by row, as transformers rounds it.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace augur {

// x, y [rows, width]; weight [width]; inverse [rows] receives 1 / sqrt(mean(x^2) + eps). T is float or
// BFloat16.
template <typename T>
void RmsNormForwardCpu(int64_t rows, int64_t width, const T* x, const T* weight, float eps, T* y,
                       float* inverse);

// grad_weight [width] is overwritten. Results do not depend on the number of threads.
template <typename T>
void RmsNormBackwardCpu(int64_t rows, int64_t width, const T* x, const T* weight, const float* inverse,
                        const T* grad_y, T* grad_x, float* grad_weight);

}  // namespace augur
