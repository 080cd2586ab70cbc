#include <cuda_bf16.h>

#include "kernels/cuda_check.h"
#include "kernels/head/unnormalised_gradient.h"
#include "kernels/head/unnormalised_gradient_math.h"

namespace augur {
namespace {

constexpr int kThreads = 128;

// One block per row of the gradient.
template <typename T, typename E>
__global__ void __launch_bounds__(kThreads) SettleKernel(LogitRows rows, UnnormalisedGradient<T> parts) {
  const int64_t target = blockIdx.x, r = parts.source ? parts.source[target] : target;
  E* unnormalised = static_cast<E*>(const_cast<void*>(rows.logits));
  E* gradient = unnormalised + target * rows.width;
  const auto row = UnnormalisedRow<T>::Of(rows, parts, r);
  if (row.empty) {
    for (int64_t j = threadIdx.x; j < rows.width; j += kThreads) gradient[j] = static_cast<E>(T(0));
  } else if (r != target) {
    const auto* from = reinterpret_cast<const uint4*>(unnormalised + r * rows.width);
    auto* to = reinterpret_cast<uint4*>(gradient);
    const int64_t vectors = rows.width * sizeof(E) / sizeof(uint4);
    for (int64_t j = threadIdx.x; j < vectors; j += kThreads) to[j] = from[j];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < rows.columns; c += kThreads) {
    const int64_t i = r * rows.columns + c;
    if (rows.support[i] < 0) continue;
    gradient[rows.support[i]] = static_cast<E>(row.AtSupport(parts.support_logprobs[i], c == 0));
  }
  if (threadIdx.x == 0) parts.factor[target] = row.factor;
}

template <typename T, typename E>
void Launch(const LogitRows& rows, const UnnormalisedGradient<T>& parts, void* stream) {
  if (rows.rows == 0) return;
  SettleKernel<T, E>
      <<<static_cast<unsigned>(rows.rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(rows, parts);
  CheckCuda(cudaGetLastError(), "row gradients on the GPU");
}

}  // namespace

template <>
void UnnormalisedGradientCuda(const LogitRows& rows, const UnnormalisedGradient<double>& parts,
                              void* stream) {
  Launch<double, double>(rows, parts, stream);
}

template <>
void UnnormalisedGradientCuda(const LogitRows& rows, const UnnormalisedGradient<float>& parts, void* stream) {
  if (rows.type == ElementType::kBFloat16) {
    Launch<float, __nv_bfloat16>(rows, parts, stream);
  } else {
    Launch<float, float>(rows, parts, stream);
  }
}

}  // namespace augur
