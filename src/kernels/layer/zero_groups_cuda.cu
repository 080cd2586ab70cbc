#include "kernels/cuda_check.h"
#include "kernels/layer/zero_groups.h"

namespace augur {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kBlocks = 16;  // for each group

__global__ void __launch_bounds__(kThreads)
    ZeroKernel(int64_t vectors, const int32_t* ends, uint4* matrices) {
  const int64_t group = blockIdx.y;
  if (ends[group] != (group > 0 ? ends[group - 1] : 0)) return;
  uint4* const matrix = matrices + group * vectors;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    matrix[i] = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace

void ZeroEmptyGroupsCuda(int64_t groups, int64_t bytes, const int32_t* ends, void* matrices, void* stream) {
  if (groups == 0 || bytes == 0) return;
  const dim3 grid(kBlocks, static_cast<unsigned>(groups));
  ZeroKernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      bytes / static_cast<int64_t>(sizeof(uint4)), ends, static_cast<uint4*>(matrices));
  CheckCuda(cudaGetLastError(), "gradients of experts on the GPU");
}

}  // namespace augur
