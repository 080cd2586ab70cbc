#include <type_traits>

#include "kernels/layer/swiglu.h"
#include "kernels/layer/swiglu_kernels.h"

namespace augur {
namespace {

template <typename T>
const SwigluKernels<T>& Kernels() {
  if constexpr (std::is_same_v<T, float>) {
    return AUGUR_LANES_CHOICE(kFloatSwiglu);
  } else {
    return AUGUR_LANES_CHOICE(kBf16Swiglu);
  }
}

}  // namespace

template <typename T>
void SwigluForwardCpu(int64_t rows, int64_t width, const T* gate_up, T* out) {
  const SwigluKernels<T>& kernels = Kernels<T>();
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) kernels.forward(width, gate_up + r * 2 * width, out + r * width);
}

template <typename T>
void SwigluBackwardCpu(int64_t rows, int64_t width, const T* gate_up, const T* grad_out, T* grad_gate_up) {
  const SwigluKernels<T>& kernels = Kernels<T>();
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    kernels.backward(width, gate_up + r * 2 * width, grad_out + r * width, grad_gate_up + r * 2 * width);
  }
}

#define AUGUR_INSTANTIATE(T)                                         \
  template void SwigluForwardCpu<T>(int64_t, int64_t, const T*, T*); \
  template void SwigluBackwardCpu<T>(int64_t, int64_t, const T*, const T*, T*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
