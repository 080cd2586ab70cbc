#include "kernels/head/support_logits.h"
#include "kernels/simd/element_cpu.h"

namespace augur {
namespace {

template <typename T, typename E>
T Dot(const E* a, const E* b, int64_t n) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += static_cast<T>(Widen(a[i])) * static_cast<T>(Widen(b[i]));
  return sum;
}

}  // namespace

template <typename T>
void SupportLogitsCpu(const SupportRows& in, T* logits) {
  WithElement<T>(in.type, [&](auto element) {
    using E = decltype(element);
    const E* hidden = static_cast<const E*>(in.hidden);
    const E* weight = static_cast<const E*>(in.weight);
    const E* bias = static_cast<const E*>(in.bias);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < in.rows * in.columns; ++i) {
      const int32_t id = in.support[i];
      logits[i] =
          id < 0 ? T(0) : Dot<T>(hidden + i / in.columns * in.width, weight + id * in.width, in.width);
      if (id >= 0 && bias != nullptr) logits[i] += static_cast<T>(Widen(bias[id]));
    }
  });
}

template void SupportLogitsCpu(const SupportRows&, float*);
template void SupportLogitsCpu(const SupportRows&, double*);

}  // namespace augur
