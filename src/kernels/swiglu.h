// SwiGLU: out = silu(gate) * up, from rows that hold gate and up side by side.
#pragma once

#include <cstdint>

#include "kernels/element.h"

namespace augur {

// gate_up [rows, 2 * width]: gate, then up; out [rows, width]. T is float or BFloat16; the arithmetic is
// float.
template <typename T>
void SwigluForwardCpu(int64_t rows, int64_t width, const T* gate_up, T* out);

// grad_gate_up [rows, 2 * width] from grad_out [rows, width].
template <typename T>
void SwigluBackwardCpu(int64_t rows, int64_t width, const T* gate_up, const T* grad_out, T* grad_gate_up);

}  // namespace augur
