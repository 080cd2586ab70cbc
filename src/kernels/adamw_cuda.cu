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

// Neighbouring elements that one thread loads and stores at once.
template <int kVector, typename E>
struct alignas(kVector * sizeof(E)) Vector {
  E x[kVector];
};

template <typename G, typename S, int kVector>
__global__ void __launch_bounds__(kThreads) AdamWKernel(AdamWArrays a, AdamWFactors f) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  const auto* gradient = static_cast<const Vector<kVector, G>*>(a.gradient);
  auto* parameter = reinterpret_cast<Vector<kVector, float>*>(a.parameter);
  auto* first = static_cast<Vector<kVector, S>*>(a.first);
  auto* second = static_cast<Vector<kVector, S>*>(a.second);
  auto* copy = static_cast<Vector<kVector, __nv_bfloat16>*>(a.copy);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < a.size / kVector;
       i += stride) {
    Vector<kVector, float> p = parameter[i];
    Vector<kVector, S> m = first[i], v = second[i];
    const Vector<kVector, G> g = gradient[i];
    Vector<kVector, __nv_bfloat16> rounded;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      auto mean = static_cast<float>(m.x[k]), square = static_cast<float>(v.x[k]);
      AdamWElement(f, static_cast<float>(g.x[k]), &p.x[k], &mean, &square);
      Philox random{};
      if constexpr (sizeof(S) == 2) {
        random = Philox::At(0, f.place + static_cast<uint64_t>(i * kVector + k), f.step);
      }
      Store(&m.x[k], mean, random.word[0]);
      Store(&v.x[k], square, random.word[1]);
      rounded.x[k] = __float2bfloat16(p.x[k]);
    }
    first[i] = m;
    second[i] = v;
    parameter[i] = p;
    if (copy != nullptr) copy[i] = rounded;
  }
}

template <typename G, typename S>
void Launch(const AdamWArrays& a, const AdamWFactors& factors, void* stream) {
  constexpr int kVector = 4;
  const auto address = reinterpret_cast<uintptr_t>(a.parameter) | reinterpret_cast<uintptr_t>(a.copy) |
                       reinterpret_cast<uintptr_t>(a.gradient) | reinterpret_cast<uintptr_t>(a.first) |
                       reinterpret_cast<uintptr_t>(a.second);
  const bool vectors = a.size % kVector == 0 && address % 16 == 0;
  const int64_t items = vectors ? a.size / kVector : a.size;
  const auto blocks = static_cast<unsigned>(std::min(kMostBlocks, items / kThreads + 1));
  const auto kernel = vectors ? AdamWKernel<G, S, kVector> : AdamWKernel<G, S, 1>;
  kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a, factors);
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
