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

constexpr int kMaxRows = 256;  // of a block that looks for the largest of its columns
constexpr int kTileColumns = 64, kTileRows = 128;
constexpr int kTilePitch = kTileRows / 4 + 1;  // in words
static_assert(kTileColumns / 8 * kTileRows / 4 == kThreads);

// The largest magnitude of each column so far, as the bits of a float, which are in its order. A warp takes
// every eighth row of the block's.
template <typename E, int kVector>
__global__ void __launch_bounds__(kThreads)
    ColumnMaxKernel(int64_t rows, int64_t width, const E* x, uint32_t* largest) {
  constexpr int kWarps = kThreads / 32, kColumns = 32 * kVector;
  __shared__ float shared[kWarps][kColumns];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * kMaxRows;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns, column = first + lane * kVector;
  const int count = static_cast<int>(min(static_cast<int64_t>(kMaxRows), rows - begin));
  float found[kVector] = {};
  if (column < width) {
    const E* from = x + (blockIdx.z * rows + begin) * width + column;
#pragma unroll 8
    for (int r = warp; r < count; r += kWarps) {
      float values[kVector];
      LoadVector<kVector>(from + r * width, values);
#pragma unroll
      for (int k = 0; k < kVector; ++k) found[k] = fmaxf(found[k], fabsf(values[k]));
    }
  }
#pragma unroll
  for (int k = 0; k < kVector; ++k) shared[warp][lane * kVector + k] = found[k];
  __syncthreads();
  for (int i = threadIdx.x; i < kColumns && first + i < width; i += kThreads) {
    float most = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, shared[w][i]);
    atomicMax(largest + blockIdx.z * width + first + i, __float_as_uint(most));
  }
}

// Eight neighbours of a row, of which `count` are there.
template <typename E>
__device__ __forceinline__ void LoadEight(const E* from, int64_t count, bool wide, float out[8]) {
  constexpr int kWide = 16 / sizeof(E);
  if (wide && count >= 8) {
#pragma unroll
    for (int k = 0; k < 8; k += kWide) LoadVector<kWide>(from + k, out + k);
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) out[k] = k < count ? static_cast<float>(from[k]) : 0.0f;
  }
}

// A tile, turned through shared memory: a thread takes eight columns of four rows, whose bytes are one word
// of each column.
template <typename E>
__global__ void __launch_bounds__(kThreads)
    TurnKernel(int64_t rows, int64_t width, int64_t length, bool power_of_two, bool wide, const E* x,
               const float* largest, uint8_t* quantised, float* scale) {
  __shared__ uint32_t tile[kTileColumns][kTilePitch];
  __shared__ RowDivisor divisors[kTileColumns];
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTileRows;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTileColumns;
  const int column = static_cast<int>(threadIdx.x) % 8 * 8, word = static_cast<int>(threadIdx.x) / 8;
  const int64_t row = first_row + 4 * word;
  float values[4][8] = {};
  const E* from = x + (blockIdx.z * rows + row) * width + first_column + column;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if (row + r < rows) LoadEight(from + r * width, width - first_column - column, wide, values[r]);
  }
  if (threadIdx.x < kTileColumns && first_column + threadIdx.x < width) {
    const int64_t place = blockIdx.z * width + first_column + threadIdx.x;
    const float most = largest[place];
    const float by = power_of_two && !isinf(most) ? E4m3PowerOfTwoScale(most) : E4m3Scale(most);
    divisors[threadIdx.x] = RowDivisor(by);
    if (blockIdx.y == 0) scale[place] = by;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const RowDivisor divide = divisors[column + k];
    const auto pair = [&](int r) -> uint32_t {
      return __nv_cvt_float2_to_fp8x2(make_float2(divide(values[r][k]), divide(values[r + 1][k])),
                                      __NV_SATFINITE, __NV_E4M3);
    };
    tile[column + k][word] = pair(0) | pair(2) << 16;
  }
  __syncthreads();
  uint8_t* to = quantised + blockIdx.z * length * width;
  if (length % 16 == 0) {
    for (int i = threadIdx.x; i < kTileColumns * (kTileRows / 16); i += kThreads) {
      const int c = i / (kTileRows / 16), part = i % (kTileRows / 16);
      const int64_t r = first_row + 16 * part;
      if (first_column + c >= width || r >= length) continue;
      const uint32_t* words = &tile[c][4 * part];
      *reinterpret_cast<uint4*>(to + (first_column + c) * length + r) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
    return;
  }
  for (int i = threadIdx.x; i < kTileColumns * kTileRows; i += kThreads) {
    const int c = i / kTileRows, r = i % kTileRows;
    if (first_column + c < width && first_row + r < length) {
      to[(first_column + c) * length + first_row + r] = reinterpret_cast<const uint8_t*>(tile[c])[r];
    }
  }
}

}  // namespace

template <typename T>
void QuantiseColumnsCuda(const ColumnsToRound<T>& in, uint8_t* quantised, float* scale, float* largest,
                         void* stream) {
  if (in.batch * in.length * in.width == 0) return;
  using E = typename CudaElement<T>::Type;
  const auto queue = static_cast<cudaStream_t>(stream);
  const auto blocks = [&](int64_t across, int64_t down) {
    return dim3(static_cast<unsigned>((in.width + across - 1) / across),
                static_cast<unsigned>((in.length + down - 1) / down), static_cast<unsigned>(in.batch));
  };
  CheckCuda(cudaMemsetAsync(largest, 0, in.batch * in.width * sizeof(float), queue),
            "quantisation on the GPU");
  constexpr int kWide = 16 / sizeof(T);
  auto* const found = reinterpret_cast<uint32_t*>(largest);
  const bool wide = in.width % kWide == 0 && reinterpret_cast<uintptr_t>(in.x) % 16 == 0;
  if (wide) {
    ColumnMaxKernel<E, kWide>
        <<<blocks(32 * kWide, kMaxRows), kThreads, 0, queue>>>(in.rows, in.width, OnDevice(in.x), found);
  } else {
    ColumnMaxKernel<E, 1>
        <<<blocks(32, kMaxRows), kThreads, 0, queue>>>(in.rows, in.width, OnDevice(in.x), found);
  }
  TurnKernel<<<blocks(kTileColumns, kTileRows), kThreads, 0, queue>>>(
      in.rows, in.width, in.length, in.power_of_two, wide, OnDevice(in.x), largest, quantised, scale);
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
template void QuantiseColumnsCuda(const ColumnsToRound<float>&, uint8_t*, float*, float*, void*);
template void QuantiseColumnsCuda(const ColumnsToRound<BFloat16>&, uint8_t*, float*, float*, void*);

}  // namespace augur
