#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/adamw_math.h"
#include "kernels/add_at_random.h"
#include "kernels/cuda_check.h"

namespace augur {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 132 * 16;

template <typename T>
__global__ void __launch_bounds__(kThreads) AddAtRandomKernel(RandomSum s) {
  auto* sum = static_cast<__nv_bfloat16*>(s.sum);
  const T* added = static_cast<const T*>(s.added);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < s.size; i += stride) {
    const float value = static_cast<float>(sum[i]) + static_cast<float>(added[i]);
    const Philox random = Philox::At(s.key, static_cast<uint64_t>(i), s.step);
    reinterpret_cast<uint16_t*>(sum)[i] = RoundFiniteAtRandom(__float_as_uint(value), random.word[0]);
  }
}

}  // namespace

void AddAtRandomCuda(const RandomSum& s, void* stream) {
  if (s.size == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(kMostBlocks, s.size / kThreads + 1));
  auto* on = static_cast<cudaStream_t>(stream);
  if (s.added_type == ElementType::kBFloat16) {
    AddAtRandomKernel<__nv_bfloat16><<<blocks, kThreads, 0, on>>>(s);
  } else {
    AddAtRandomKernel<float><<<blocks, kThreads, 0, on>>>(s);
  }
  CheckCuda(cudaGetLastError(), "gradient sums on the GPU");
}

}  // namespace augur
