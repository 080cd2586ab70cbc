#include "kernels/swiglu.h"
#include "kernels/vector_math.h"

namespace augur {

template <typename T>
void SwigluForwardCpu(int64_t rows, int64_t width, const T* gate_up, T* out) {
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const T* gate = gate_up + r * 2 * width;
    const T* up = gate + width;
    T* to = out + r * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float g = static_cast<float>(gate[i]);
      to[i] = FromFloat<T>(g / (1.0f + VectorExp(-g)) * static_cast<float>(up[i]));
    }
  }
}

template <typename T>
void SwigluBackwardCpu(int64_t rows, int64_t width, const T* gate_up, const T* grad_out, T* grad_gate_up) {
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const T* gate = gate_up + r * 2 * width;
    const T* up = gate + width;
    const T* grad = grad_out + r * width;
    T* grad_gate = grad_gate_up + r * 2 * width;
    T* grad_up = grad_gate + width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float g = static_cast<float>(gate[i]), d = static_cast<float>(grad[i]);
      const float sigmoid = 1.0f / (1.0f + VectorExp(-g));
      grad_gate[i] = FromFloat<T>(d * static_cast<float>(up[i]) * sigmoid * (1.0f + g * (1.0f - sigmoid)));
      grad_up[i] = FromFloat<T>(d * g * sigmoid);
    }
  }
}

#define AUGUR_INSTANTIATE(T)                                         \
  template void SwigluForwardCpu<T>(int64_t, int64_t, const T*, T*); \
  template void SwigluBackwardCpu<T>(int64_t, int64_t, const T*, const T*, T*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
