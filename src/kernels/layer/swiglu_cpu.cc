#include "kernels/layer/swiglu.h"
#include "kernels/simd/float_lanes.h"

namespace augur {

template <typename T>
void SwigluForwardCpu(int64_t rows, int64_t width, const T* gate_up, T* out) {
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    const T* gate = gate_up + r * 2 * width;
    const T* up = gate + width;
    T* to = out + r * width;
    for (int64_t i = 0; i < width; i += kFloats) {
      const Floats g = LoadLanes(gate + i, width - i);
      StoreLanes(g / (1.0f + VectorExp(-g)) * LoadLanes(up + i, width - i), to + i, width - i);
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
    for (int64_t i = 0; i < width; i += kFloats) {
      const int64_t left = width - i;
      const Floats g = LoadLanes(gate + i, left), d = LoadLanes(grad + i, left);
      const Floats sigmoid = 1.0f / (1.0f + VectorExp(-g));
      StoreLanes(d * LoadLanes(up + i, left) * sigmoid * (1.0f + g * (1.0f - sigmoid)), grad_gate + i, left);
      StoreLanes(d * g * sigmoid, grad_up + i, left);
    }
  }
}

#define AUGUR_INSTANTIATE(T)                                         \
  template void SwigluForwardCpu<T>(int64_t, int64_t, const T*, T*); \
  template void SwigluBackwardCpu<T>(int64_t, int64_t, const T*, const T*, T*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
