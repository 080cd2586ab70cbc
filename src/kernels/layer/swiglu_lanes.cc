#include "kernels/layer/swiglu_kernels.h"
#include "kernels/simd/float_lanes.h"

namespace augur {
inline namespace AUGUR_LANES {
namespace {

template <typename T>
void Forward(int64_t width, const T* gate_up, T* out) {
  const T* up = gate_up + width;
  for (int64_t i = 0; i < width; i += kFloats) {
    const int64_t left = width - i;
    const Floats g = LoadLanes(gate_up + i, left);
    StoreLanes(g / (1.0f + VectorExp(-g)) * LoadLanes(up + i, left), out + i, left);
  }
}

template <typename T>
void Backward(int64_t width, const T* gate_up, const T* grad_out, T* grad_gate_up) {
  const T* up = gate_up + width;
  T* grad_up = grad_gate_up + width;
  for (int64_t i = 0; i < width; i += kFloats) {
    const int64_t left = width - i;
    const Floats g = LoadLanes(gate_up + i, left), d = LoadLanes(grad_out + i, left);
    const Floats sigmoid = 1.0f / (1.0f + VectorExp(-g));
    const Floats slope = sigmoid * (1.0f + g * (1.0f - sigmoid));
    StoreLanes(d * LoadLanes(up + i, left) * slope, grad_gate_up + i, left);
    StoreLanes(d * g * sigmoid, grad_up + i, left);
  }
}

}  // namespace
}  // namespace AUGUR_LANES

extern const SwigluKernels<float> AUGUR_LANES_TABLE(kFloatSwiglu) = {Forward<float>, Backward<float>};
extern const SwigluKernels<BFloat16> AUGUR_LANES_TABLE(kBf16Swiglu) = {Forward<BFloat16>, Backward<BFloat16>};

}  // namespace augur
