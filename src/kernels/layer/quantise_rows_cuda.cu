#include "kernels/cuda_check.h"
#include "kernels/cuda_rows.h"
#include "kernels/layer/fp8_cuda.h"
#include "kernels/layer/quantise_rows.h"

namespace augur {
namespace {

constexpr int kThreads = 256;

// One row per block, read twice: the second time it is still in the cache.
template <typename E, int kVector>
__global__ void __launch_bounds__(kThreads)
    QuantiseKernel(int64_t width, const E* x, uint8_t* quantised, float* scale) {
  __shared__ float shared[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  float largest = 0, values[kVector];
  for (int64_t i = threadIdx.x * kVector; i < width; i += kThreads * kVector) {
    LoadVector<kVector>(x + row + i, values);
#pragma unroll
    for (int k = 0; k < kVector; ++k) largest = fmaxf(largest, fabsf(values[k]));
  }
  const float by = E4m3Scale(BlockMax(largest, shared));
  if (threadIdx.x == 0) scale[blockIdx.x] = by;
  const RowDivisor divide(by);
  for (int64_t i = threadIdx.x * kVector; i < width; i += kThreads * kVector) {
    LoadVector<kVector>(x + row + i, values);
    StoreFp8<kVector>(values, divide, quantised + row + i);
  }
}

constexpr int kTile = 64;      // of rows and of columns
constexpr int kMaxRows = 256;  // of a block that looks for the largest of its columns
constexpr int kTilePitch = kTile + 16;

// The largest magnitude of each column so far, as the bits of a float, which are in its order.
template <typename E>
__global__ void __launch_bounds__(kThreads)
    ColumnMaxKernel(int64_t rows, int64_t width, const E* x, uint32_t* largest) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= width) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kMaxRows;
  const E* from = x + (blockIdx.z * rows + begin) * width + column;
  const int count = static_cast<int>(min(static_cast<int64_t>(kMaxRows), rows - begin));
  float found = 0;
#pragma unroll 16
  for (int r = 0; r < count; ++r) found = fmaxf(found, fabsf(static_cast<float>(from[r * width])));
  atomicMax(largest + blockIdx.z * width + column, __float_as_uint(found));
}

// A tile, turned through shared memory.
template <typename E>
__global__ void __launch_bounds__(kThreads)
    TurnKernel(int64_t rows, int64_t width, const E* x, const float* largest, uint8_t* quantised,
               float* scale) {
  __shared__ __align__(16) uint8_t tile[kTile][kTilePitch];  // [column][row]
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTile;
  const int within = threadIdx.x % kTile;
  const int64_t column = first_column + within;
  if (column < width) {
    const float by = E4m3Scale(largest[blockIdx.z * width + column]);
    const RowDivisor divide(by);
    if (blockIdx.y == 0 && threadIdx.x < kTile) scale[blockIdx.z * width + column] = by;
    const E* from = x + (blockIdx.z * rows + first_row) * width + column;
#pragma unroll
    for (int i = 0; i < kTile; i += kThreads / kTile * 4) {
      const int row = i + static_cast<int>(threadIdx.x) / kTile * 4;  // four of them
      uint32_t bytes = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float value = first_row + row + k < rows ? static_cast<float>(from[(row + k) * width]) : 0.0f;
        bytes |= static_cast<uint32_t>(__nv_cvt_float_to_fp8(divide(value), __NV_SATFINITE, __NV_E4M3))
                 << (8 * k);
      }
      *reinterpret_cast<uint32_t*>(&tile[within][row]) = bytes;
    }
  }
  __syncthreads();
  uint8_t* to = quantised + blockIdx.z * rows * width;
  if (rows % 16 == 0) {
    const int c = threadIdx.x / (kTile / 16), r = threadIdx.x % (kTile / 16) * 16;
    if (first_column + c < width && first_row + r < rows) {
      *reinterpret_cast<uint4*>(to + (first_column + c) * rows + first_row + r) =
          *reinterpret_cast<const uint4*>(&tile[c][r]);
    }
    return;
  }
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int c = i / kTile, r = i % kTile;
    if (first_column + c < width && first_row + r < rows) {
      to[(first_column + c) * rows + first_row + r] = tile[c][r];
    }
  }
}

}  // namespace

template <typename T>
void QuantiseColumnsCuda(int64_t batch, int64_t rows, int64_t width, const T* x, uint8_t* quantised,
                         float* scale, float* largest, void* stream) {
  if (batch * rows * width == 0) return;
  const auto queue = static_cast<cudaStream_t>(stream);
  const auto blocks = [&](int64_t across, int64_t down) {
    return dim3(static_cast<unsigned>((width + across - 1) / across),
                static_cast<unsigned>((rows + down - 1) / down), static_cast<unsigned>(batch));
  };
  CheckCuda(cudaMemsetAsync(largest, 0, batch * width * sizeof(float), queue), "quantisation on the GPU");
  ColumnMaxKernel<<<blocks(kThreads, kMaxRows), kThreads, 0, queue>>>(rows, width, OnDevice(x),
                                                                      reinterpret_cast<uint32_t*>(largest));
  TurnKernel<<<blocks(kTile, kTile), kThreads, 0, queue>>>(rows, width, OnDevice(x), largest, quantised,
                                                           scale);
  CheckCuda(cudaGetLastError(), "quantisation on the GPU");
}

template <typename T>
void QuantiseRowsCuda(int64_t rows, int64_t width, const T* x, uint8_t* quantised, float* scale,
                      void* stream) {
  if (rows == 0) return;
  using E = typename CudaElement<T>::Type;
  constexpr int kWide = 16 / sizeof(E);
  const auto queue = static_cast<cudaStream_t>(stream);
  const auto address = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(quantised);
  if (width % kWide == 0 && address % 16 == 0) {
    QuantiseKernel<E, kWide>
        <<<static_cast<unsigned>(rows), kThreads, 0, queue>>>(width, OnDevice(x), quantised, scale);
  } else {
    QuantiseKernel<E, 1>
        <<<static_cast<unsigned>(rows), kThreads, 0, queue>>>(width, OnDevice(x), quantised, scale);
  }
  CheckCuda(cudaGetLastError(), "quantisation on the GPU");
}

template void QuantiseRowsCuda(int64_t, int64_t, const float*, uint8_t*, float*, void*);
template void QuantiseRowsCuda(int64_t, int64_t, const BFloat16*, uint8_t*, float*, void*);
template void QuantiseColumnsCuda(int64_t, int64_t, int64_t, const float*, uint8_t*, float*, float*, void*);
template void QuantiseColumnsCuda(int64_t, int64_t, int64_t, const BFloat16*, uint8_t*, float*, float*,
                                  void*);

}  // namespace augur
