// Adds up partial sums that blocks left behind, in their order. For .cu files only.
#pragma once

#include <cstdint>

namespace augur {

constexpr int kColumnTile = 32;
constexpr int kColumnLanes = 16;

// sums[c] = the sum over r of partial[r, c]; blocks of (kColumnTile, kColumnLanes) threads, one per tile.
static __global__ void ColumnSumsKernel(int64_t rows, int64_t width, const float* partial, float* sums) {
  __shared__ float lanes[kColumnLanes][kColumnTile];
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kColumnTile + threadIdx.x;
  float sum = 0;
  if (c < width) {
    for (int64_t r = threadIdx.y; r < rows; r += kColumnLanes) sum += partial[r * width + c];
  }
  lanes[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= width) return;
  for (int i = 1; i < kColumnLanes; ++i) sum += lanes[i][threadIdx.x];
  sums[c] = sum;
}

inline void SumColumns(int64_t rows, int64_t width, const float* partial, float* sums, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((width + kColumnTile - 1) / kColumnTile);
  ColumnSumsKernel<<<blocks, dim3(kColumnTile, kColumnLanes), 0, stream>>>(rows, width, partial, sums);
}

}  // namespace augur
