#include "kernels/decode/decode_rows.h"
#include "kernels/decode/packed_gemm_bf16.h"
#include "kernels/layer/rms_norm_row.h"
#include "kernels/simd/rounded_lanes.h"

namespace augur {
namespace {

template <typename T>
void AddNormRow(int64_t width, const float* added, const float* weight, float eps, float* x, float* y) {
  const int64_t whole = width / kFloats * kFloats;
  if (added != nullptr) {
    for (int64_t i = 0; i < whole; i += kFloats) {
      StoreFloats(Rounded<T>(LoadFloats(x + i) + LoadFloats(added + i)), x + i);
    }
    for (int64_t i = whole; i < width; ++i) x[i] = Rounded<T>(x[i] + added[i]);
  }
  const float inverse = InverseRms(x, width, eps);
  for (int64_t i = 0; i < whole; i += kFloats) {
    StoreFloats(Rounded<T>(Rounded<T>(LoadFloats(x + i) * inverse) * LoadFloats(weight + i)), y + i);
  }
  for (int64_t i = whole; i < width; ++i) y[i] = Rounded<T>(Rounded<T>(x[i] * inverse) * weight[i]);
}

template <typename T>
void RotateRow(const RotaryRow& shape, const float* cos, const float* sin, float* qk) {
  const int half = shape.head_dim / 2;
  for (int h = 0; h < shape.heads + shape.kv_heads; ++h) {
    float* head = qk + static_cast<int64_t>(h) * shape.head_dim;
    if (shape.q_norm != nullptr) {
      const float* weight = h < shape.heads ? shape.q_norm : shape.k_norm;
      const float inverse = InverseRms(head, shape.head_dim, shape.eps);
      for (int d = 0; d < shape.head_dim; ++d) head[d] *= inverse * weight[d];
    }
    int i = 0;
    for (; i + kFloats <= half; i += kFloats) {
      const Floats a = LoadFloats(head + i), b = LoadFloats(head + half + i);
      const Floats c = LoadFloats(cos + i), s = LoadFloats(sin + i);
      StoreFloats(Rounded<T>(a * c - b * s), head + i);
      StoreFloats(Rounded<T>(b * c + a * s), head + half + i);
    }
    for (; i < half; ++i) {
      const float a = head[i], b = head[half + i];
      head[i] = Rounded<T>(a * cos[i] - b * sin[i]);
      head[half + i] = Rounded<T>(b * cos[i] + a * sin[i]);
    }
  }
}

template <typename T>
void SwigluRow(int64_t width, const float* gate_up, float* out) {
  const float* up = gate_up + width;
  int64_t i = 0;
  for (; i + kFloats <= width; i += kFloats) {
    StoreFloats(Rounded<T>(Swiglu(LoadFloats(gate_up + i), LoadFloats(up + i))), out + i);
  }
  for (; i < width; ++i) out[i] = Rounded<T>(Swiglu(Floats{gate_up[i]}, Floats{up[i]})[0]);
}

// Calls f with what T is on this machine.
template <typename T, typename F>
void WithRounding(F f) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (MachineHasBfmmla()) return f(MachineBf16());
  }
  f(T());
}

}  // namespace

template <typename T>
void AddNormRowCpu(int64_t width, const float* added, const float* weight, float eps, float* x, float* y) {
  WithRounding<T>([&](auto type) { AddNormRow<decltype(type)>(width, added, weight, eps, x, y); });
}

template <typename T>
void RotateRowCpu(const RotaryRow& shape, const float* cos, const float* sin, float* qk) {
  WithRounding<T>([&](auto type) { RotateRow<decltype(type)>(shape, cos, sin, qk); });
}

template <typename T>
void SwigluRowCpu(int64_t width, const float* gate_up, float* out) {
  WithRounding<T>([&](auto type) { SwigluRow<decltype(type)>(width, gate_up, out); });
}

#define AUGUR_INSTANTIATE(T)                                                                  \
  template void AddNormRowCpu<T>(int64_t, const float*, const float*, float, float*, float*); \
  template void RotateRowCpu<T>(const RotaryRow&, const float*, const float*, float*);        \
  template void SwigluRowCpu<T>(int64_t, const float*, float*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
