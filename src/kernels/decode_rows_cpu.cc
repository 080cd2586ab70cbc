#include "kernels/decode_rows.h"
#include "kernels/float_lanes.h"
#include "kernels/rms_norm_row.h"

namespace augur {
namespace {

template <typename T>
inline float Rounded(float x) {
  return static_cast<float>(FromFloat<T>(x));
}

}  // namespace

template <typename T>
void AddNormRowCpu(int64_t width, const float* added, const float* weight, float eps, float* x, float* y) {
  if (added != nullptr) {
    for (int64_t i = 0; i < width; ++i) x[i] = Rounded<T>(x[i] + added[i]);
  }
  const float inverse = InverseRms(x, width, eps);
  for (int64_t i = 0; i < width; ++i) y[i] = Rounded<T>(Rounded<T>(x[i] * inverse) * weight[i]);
}

template <typename T>
void RotateRowCpu(const RotaryRow& shape, const float* cos, const float* sin, float* qk) {
  const int half = shape.head_dim / 2;
  for (int h = 0; h < shape.heads + shape.kv_heads; ++h) {
    float* head = qk + static_cast<int64_t>(h) * shape.head_dim;
    if (shape.q_norm != nullptr) {
      const float* weight = h < shape.heads ? shape.q_norm : shape.k_norm;
      const float inverse = InverseRms(head, shape.head_dim, shape.eps);
      for (int d = 0; d < shape.head_dim; ++d) head[d] *= inverse * weight[d];
    }
    for (int i = 0; i < half; ++i) {
      const float a = head[i], b = head[half + i];
      head[i] = Rounded<T>(a * cos[i] - b * sin[i]);
      head[half + i] = Rounded<T>(b * cos[i] + a * sin[i]);
    }
  }
}

void SwigluRowCpu(int64_t width, const float* gate_up, float* out) {
  const float* up = gate_up + width;
  for (int64_t i = 0; i < width; i += kFloats) {
    const Floats g = LoadLanes(gate_up + i, width - i);
    StoreLanes(g / (1.0f + VectorExp(-g)) * LoadLanes(up + i, width - i), out + i, width - i);
  }
}

#define AUGUR_INSTANTIATE(T)                                                                  \
  template void AddNormRowCpu<T>(int64_t, const float*, const float*, float, float*, float*); \
  template void RotateRowCpu<T>(const RotaryRow&, const float*, const float*, float*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
