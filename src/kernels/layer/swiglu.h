// SwiGLU: out = silu(gate) * up, from rows that hold gate and up side by side.
#pragma once

#include <cstdint>

#include "kernels/layer/product_scale.h"
#include "kernels/simd/element.h"

namespace augur {

// gate_up [rows, 2 * width]: gate, then up; out [rows, width]. T is float or BFloat16; the arithmetic is
// float.
template <typename T>
void SwigluForwardCpu(int64_t rows, int64_t width, const T* gate_up, T* out);

// grad_gate_up [rows, 2 * width] from grad_out [rows, width].
template <typename T>
void SwigluBackwardCpu(int64_t rows, int64_t width, const T* gate_up, const T* grad_out, T* grad_gate_up);

// On CUDA. With `quantised` [rows, width] and `scale` [rows], out (which may then be null) is also written as
// e4m3, divided by its row's scale: the largest magnitude of the row / 448. `gate_up_scale` is that of
// gate_up, where it is an FP8 product without its scales.
template <typename T>
void SwigluForwardCuda(int64_t rows, int64_t width, const T* gate_up, const ProductScale& gate_up_scale,
                       T* out, uint8_t* quantised, float* scale, void* stream);

// What the backward makes, on CUDA. Pointers left null leave their part out, but for the first.
template <typename T>
struct SwigluGradient {
  T* grad_gate_up = nullptr;     // [rows, 2 * width]
  T* out = nullptr;              // [rows, width]: SwiGLU once more
  uint8_t* quantised = nullptr;  // [rows, 2 * width]: grad_gate_up as e4m3, divided by its row's scale
  float* scale = nullptr;        // [rows], with `quantised`
};
template <typename T>
void SwigluBackwardCuda(int64_t rows, int64_t width, const T* gate_up, const ProductScale& gate_up_scale,
                        const T* grad_out, const SwigluGradient<T>& to, void* stream);

}  // namespace augur
