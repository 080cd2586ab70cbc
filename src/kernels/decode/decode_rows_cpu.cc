#include <type_traits>

#include "kernels/decode/decode_rows.h"
#include "kernels/decode/row_kernels.h"
#include "kernels/simd/element.h"
#include "kernels/simd/rounded_lanes.h"

namespace augur {
namespace {

template <typename T>
const RowKernels& Kernels() {
  if constexpr (std::is_same_v<T, float>) return AUGUR_LANES_CHOICE(kFloatRows);
#if defined(__aarch64__)
  if (CurrentIsa() == Isa::kBfmmla) return kMachineBf16Rows;
#endif
  return AUGUR_LANES_CHOICE(kBf16Rows);
}

}  // namespace

template <typename T>
void AddNormRowCpu(int64_t width, const float* added, const float* weight, float eps, float* x, float* y) {
  Kernels<T>().add_norm(width, added, weight, eps, x, y);
}

template <typename T>
void RotateRowCpu(const RotaryRow& shape, const float* cos, const float* sin, float* qk) {
  Kernels<T>().rotate(shape, cos, sin, qk);
}

template <typename T>
void SwigluRowCpu(int64_t width, const float* gate_up, float* out) {
  Kernels<T>().swiglu(width, gate_up, out);
}

template <typename T>
void RoundRowCpu(int64_t width, float* x) {
  for (int64_t i = 0; i < width; ++i) x[i] = Rounded<T>(x[i]);
}

template <typename T>
void AddRowCpu(int64_t width, const float* added, float* x) {
  for (int64_t i = 0; i < width; ++i) x[i] = Rounded<T>(x[i] + added[i]);
}

template <typename T>
void AddWeightedRowCpu(int64_t width, const float* added, float weight, float* x) {
  for (int64_t i = 0; i < width; ++i) x[i] = Rounded<T>(x[i] + Rounded<T>(added[i] * weight));
}

void WidenRowCpu(int64_t width, const BFloat16* from, float* to) {
  for (int64_t i = 0; i < width; ++i) to[i] = from[i];
}

#define AUGUR_INSTANTIATE(T)                                                                  \
  template void AddNormRowCpu<T>(int64_t, const float*, const float*, float, float*, float*); \
  template void RotateRowCpu<T>(const RotaryRow&, const float*, const float*, float*);        \
  template void SwigluRowCpu<T>(int64_t, const float*, float*);                               \
  template void RoundRowCpu<T>(int64_t, float*);                                              \
  template void AddRowCpu<T>(int64_t, const float*, float*);                                  \
  template void AddWeightedRowCpu<T>(int64_t, const float*, float, float*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
