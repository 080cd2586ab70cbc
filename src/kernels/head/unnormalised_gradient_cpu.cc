#include <cstring>

#include "kernels/head/unnormalised_gradient.h"
#include "kernels/head/unnormalised_gradient_math.h"
#include "kernels/simd/element_cpu.h"

namespace augur {
namespace {

template <typename T, typename E>
void SettleRow(const LogitRows& rows, const UnnormalisedGradient<T>& parts, int64_t target) {
  const int64_t r = parts.source ? parts.source[target] : target;
  E* unnormalised = static_cast<E*>(const_cast<void*>(rows.logits));
  E* gradient = unnormalised + target * rows.width;
  const auto row = UnnormalisedRow<T>::Of(rows, parts, r);
  const size_t bytes = rows.width * sizeof(E);
  if (row.empty) {
    std::memset(static_cast<void*>(gradient), 0, bytes);
  } else if (r != target) {
    std::memcpy(static_cast<void*>(gradient), unnormalised + r * rows.width, bytes);
  }
  for (int c = 0; c < rows.columns; ++c) {
    const int64_t i = r * rows.columns + c;
    if (rows.support[i] < 0) continue;
    Store(row.AtSupport(parts.support_logprobs[i], c == 0), &gradient[rows.support[i]]);
  }
  parts.factor[target] = row.factor;
}

}  // namespace

template <typename T>
void UnnormalisedGradientCpu(const LogitRows& rows, const UnnormalisedGradient<T>& parts) {
  WithElement<T>(rows.type, [&](auto element) {
    using E = decltype(element);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows.rows; ++r) SettleRow<T, E>(rows, parts, r);
  });
}

template void UnnormalisedGradientCpu(const LogitRows&, const UnnormalisedGradient<float>&);
template void UnnormalisedGradientCpu(const LogitRows&, const UnnormalisedGradient<double>&);

}  // namespace augur
