#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/adamw.h"
#include "kernels/adamw_math.h"
#include "kernels/cuda_check.h"

namespace augur {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 16;

__device__ __forceinline__ void Store(float* to, float value, uint32_t) { *to = value; }
__device__ __forceinline__ void Store(__nv_bfloat16* to, float value, uint32_t random) {
  *reinterpret_cast<uint16_t*>(to) = RoundAtRandom(__float_as_uint(value), random);
}

template <typename G, typename S>
__global__ void __launch_bounds__(kThreads) AdamWKernel(AdamWArrays a, AdamWFactors f) {
  const G* gradient = static_cast<const G*>(a.gradient);
  S *first = static_cast<S*>(a.first), *second = static_cast<S*>(a.second);
  auto* copy = static_cast<__nv_bfloat16*>(a.copy);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < a.size; i += stride) {
    float p = a.parameter[i], m = static_cast<float>(first[i]), v = static_cast<float>(second[i]);
    AdamWElement(f, static_cast<float>(gradient[i]), &p, &m, &v);
    Philox random{};
    if constexpr (sizeof(S) == 2) random = Philox::At(f.key, static_cast<uint64_t>(i), f.step);
    Store(first + i, m, random.word[0]);
    Store(second + i, v, random.word[1]);
    a.parameter[i] = p;
    if (copy != nullptr) copy[i] = __float2bfloat16(p);
  }
}

template <typename G, typename S>
void Launch(const AdamWArrays& a, const AdamWFactors& factors, void* stream) {
  const auto blocks = static_cast<unsigned>(std::min(kMostBlocks, a.size / kThreads + 1));
  AdamWKernel<G, S><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a, factors);
  CheckCuda(cudaGetLastError(), "AdamW on the GPU");
}

}  // namespace

void AdamWCuda(const AdamWArrays& a, const AdamWSettings& settings, void* stream) {
  if (a.size == 0) return;
  const AdamWFactors factors = AdamWFactors::From(settings);
  const bool short_gradient = a.gradient_type == ElementType::kBFloat16;
  if (a.state_type == ElementType::kBFloat16) {
    short_gradient ? Launch<__nv_bfloat16, __nv_bfloat16>(a, factors, stream)
                   : Launch<float, __nv_bfloat16>(a, factors, stream);
  } else {
    short_gradient ? Launch<__nv_bfloat16, float>(a, factors, stream)
                   : Launch<float, float>(a, factors, stream);
  }
}

}  // namespace augur
