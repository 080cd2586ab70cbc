// RMSNorm and rotation of a range of rows, by width of vectors: for rms_norm_cpu.cc and rotary_cpu.cc.
#pragma once

#include <cstdint>

#include "kernels/layer/rotary.h"
#include "kernels/simd/element.h"
#include "kernels/simd/lanes.h"

namespace augur {

// Rows are held as floats with this many more behind them, which vectors may read and write.
inline constexpr int64_t kRowSlack = 16;
inline int64_t ScratchRow(int64_t width) { return width + kRowSlack; }

template <typename T>
struct RmsNormBackwardRows {
  int64_t width;
  const T *x, *grad_y;
  const float* weight;   // [width]
  const float* inverse;  // of each row
  T* grad_x;
};

// `scratch` holds so many ScratchRow(width): 1 for the norm's forward, 2 for its backward, and likewise of
// head_dim for rotation. `partial` is added to.
template <typename T>
struct NormKernels {
  void (*norm)(int64_t begin, int64_t end, int64_t width, const T* x, const float* weight, float eps, T* y,
               float* inverse, float* scratch);
  void (*norm_backward)(int64_t begin, int64_t end, const RmsNormBackwardRows<T>& rows, float* partial,
                        float* scratch);
  // q_norm and k_norm: in.q_norm and in.k_norm as floats, or null.
  void (*rotate)(int64_t begin, int64_t end, const RotaryInput<T>& in, const float* q_norm,
                 const float* k_norm, T* rotated, float* scratch);
  // partial [2, head_dim]
  void (*rotate_backward)(int64_t begin, int64_t end, const RotaryInput<T>& in, const float* q_norm,
                          const float* k_norm, T* grad, float* partial, float* scratch);
};
AUGUR_LANES_DECLARE(NormKernels<float>, kFloatNorms);
AUGUR_LANES_DECLARE(NormKernels<BFloat16>, kBf16Norms);

template <typename T>
const NormKernels<T>& NormKernelsOf() {
  if constexpr (sizeof(T) == sizeof(float)) {
    return AUGUR_LANES_CHOICE(kFloatNorms);
  } else {
    return AUGUR_LANES_CHOICE(kBf16Norms);
  }
}

}  // namespace augur
