#include "kernels/cuda_check.h"
#include "kernels/decode/take_tokens.h"

namespace augur {
namespace {

constexpr int kThreads = 256;

__global__ void TakeKernel(int64_t count, const int32_t* source, const int32_t* sampled, int32_t* tokens) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count && source[i] >= 0) tokens[i] = max(0, sampled[source[i]]);
}

}  // namespace

void TakeTokensCuda(int64_t count, const int32_t* source, const int32_t* sampled, int32_t* tokens,
                    void* stream) {
  if (count == 0) return;
  TakeKernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
               static_cast<cudaStream_t>(stream)>>>(count, source, sampled, tokens);
  CheckCuda(cudaGetLastError(), "handing tokens on");
}

}  // namespace augur
