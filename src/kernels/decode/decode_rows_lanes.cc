#include <cmath>

#include "kernels/decode/row_kernels.h"
#include "kernels/layer/fp8.h"
#include "kernels/layer/rms_norm_row.h"
#include "kernels/simd/rounded_lanes.h"

namespace augur {
inline namespace AUGUR_LANES {
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
    StoreFloats(Rounded<T>(LoadFloats(x + i) * inverse * LoadFloats(weight + i)), y + i);
  }
  for (int64_t i = whole; i < width; ++i) y[i] = Rounded<T>(x[i] * inverse * weight[i]);
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

float Quantize(float* values, int64_t width) {
  const int64_t whole = width / kFloats * kFloats;
  Floats most{};
  Ints odd{};
  for (int64_t i = 0; i < whole; i += kFloats) {
    const Floats x = LoadFloats(values + i);
    const Floats magnitude = (Floats)((Ints)x & INT32_MAX);
    most = magnitude > most ? magnitude : most;
    odd |= x != x;
  }
  float largest = LargestOf(most);
  bool nan = AnyOf(odd);
  for (int64_t i = whole; i < width; ++i) {
    const float magnitude = std::fabs(values[i]);
    largest = magnitude > largest ? magnitude : largest;
    nan |= std::isnan(values[i]);
  }
  const float scale = nan ? NAN : E4m3Scale(largest);
  for (int64_t i = 0; i < whole; i += kFloats) {
    StoreFloats(RoundToE4m3(LoadFloats(values + i) / scale), values + i);
  }
  for (int64_t i = whole; i < width; ++i) values[i] = RoundToE4m3(values[i] / scale);
  return scale;
}

void Narrow(float* values, int64_t width) {
  auto* to = reinterpret_cast<char*>(values);
  int64_t i = 0;
  for (; i + kFloats <= width; i += kFloats, to += sizeof(Halves)) {
    const Halves halves = ToBf16<BFloat16>(LoadFloats(values + i));
    std::memcpy(to, &halves, sizeof(halves));
  }
  for (; i < width; ++i, to += sizeof(uint16_t)) {
    const uint16_t bits = BFloat16::From(values[i]).bits;
    std::memcpy(to, &bits, sizeof(bits));
  }
}

template <typename T>
constexpr RowKernels kRows = {AddNormRow<T>, RotateRow<T>, SwigluRow<T>};

}  // namespace
}  // namespace AUGUR_LANES

extern const RowKernels AUGUR_LANES_TABLE(kFloatRows) = kRows<float>;
extern const RowKernels AUGUR_LANES_TABLE(kBf16Rows) = kRows<BFloat16>;
#if defined(__aarch64__)
extern const RowKernels kMachineBf16Rows = kRows<MachineBf16>;
#endif
extern const RoundingKernels AUGUR_LANES_TABLE(kRounding) = {Quantize, Narrow};

}  // namespace augur
