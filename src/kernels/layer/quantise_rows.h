// Rows rounded to FP8 with a scale each, on a GPU: weights by output channel, activations by token.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

// quantised [rows, width] receives x as e4m3, divided by the row's scale: its largest magnitude / 448, or 1
// for a row of zeros. T is float or BFloat16.
template <typename T>
void QuantiseRowsCuda(int64_t rows, int64_t width, const T* x, uint8_t* quantised, float* scale,
                      void* stream);

}  // namespace augur
