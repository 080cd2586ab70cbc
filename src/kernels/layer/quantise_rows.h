// Rows rounded to FP8 with a scale each, on a GPU: weights by output channel, activations by token, and
// weights by input channel, where products run over the outputs.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"

namespace augur {

// quantised [rows, width] receives x as e4m3, divided by the row's scale: its largest magnitude / 448, or 1
// for a row of zeros. T is float or BFloat16.
template <typename T>
void QuantiseRowsCuda(int64_t rows, int64_t width, const T* x, uint8_t* quantised, float* scale,
                      void* stream);

// Matrices whose columns become rows.
template <typename T>
struct ColumnsToRound {
  int64_t batch = 1, rows = 0, width = 0;
  const T* x = nullptr;       // [batch, rows, width]
  int64_t length = 0;         // of a rounded column, rows or more; what is more is zeros
  bool power_of_two = false;  // whether the scale is the least power of two by which a column fits
};

// quantised [batch, width, length], scale [batch, width]. `largest` is scratch of [batch, width].
template <typename T>
void QuantiseColumnsCuda(const ColumnsToRound<T>& columns, uint8_t* quantised, float* scale, float* largest,
                         void* stream);

}  // namespace augur
