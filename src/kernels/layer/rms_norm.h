// RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, row by row, rounded once.
#pragma once

#include <cstdint>

#include "kernels/layer/product_scale.h"
#include "kernels/simd/element.h"

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

// The CUDA kernel, which also does what stands around a norm in a decoder: takes rows from a table by index,
// adds the residual, quantises for FP8 products. Pointers left null leave their part out.
template <typename T>
struct RmsNormRows {
  int64_t rows = 0;
  int64_t width = 0;                // up to 32768 in multiples of 16 bytes, 4096 otherwise
  const T* x = nullptr;             // [rows, width], or a table of rows with `gather`
  const int32_t* gather = nullptr;  // [rows]: row r is x[gather[r]]
  const T* delta = nullptr;         // [rows, width], added to x and rounded before the norm
  const float* product = nullptr;   // in place of delta: an FP8 product without its scales, which is rounded
  ProductScale product_scale = {};  // to T once they are multiplied in
  const T* weight = nullptr;        // [width]
  float eps = 0;
  T* sum = nullptr;              // [rows, width] receives x + delta; may be x where there is no gather
  T* y = nullptr;                // [rows, width]
  float* inverse = nullptr;      // [rows]
  uint8_t* quantised = nullptr;  // [rows, width] receives y as e4m3, divided by the row's scale
  float* scale = nullptr;        // [rows], with `quantised`: the largest |y| of the row / 448
};
template <typename T>
void RmsNormForwardCuda(const RmsNormRows<T>& rows, void* stream);

// `extra` [rows, width], or null, is added to grad_x: what reaches x along the residual. `partial` is scratch
// of [RmsNormPartialRows(rows), width].
int64_t RmsNormPartialRows(int64_t rows);
template <typename T>
void RmsNormBackwardCuda(int64_t rows, int64_t width, const T* x, const T* weight, const float* inverse,
                         const T* grad_y, const T* extra, T* grad_x, float* partial, float* grad_weight,
                         void* stream);

}  // namespace augur
