// SwiGLU of single rows, by width of vectors: for swiglu_cpu.cc.
#pragma once

#include <cstdint>

#include "kernels/simd/element.h"
#include "kernels/simd/lanes.h"

namespace augur {

template <typename T>
struct SwigluKernels {
  void (*forward)(int64_t width, const T* gate_up, T* out);
  void (*backward)(int64_t width, const T* gate_up, const T* grad_out, T* grad_gate_up);
};
AUGUR_LANES_DECLARE(SwigluKernels<float>, kFloatSwiglu);
AUGUR_LANES_DECLARE(SwigluKernels<BFloat16>, kBf16Swiglu);

}  // namespace augur
