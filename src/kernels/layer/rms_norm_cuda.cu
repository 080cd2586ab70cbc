#include "kernels/cuda_check.h"
#include "kernels/cuda_overlap.h"
#include "kernels/cuda_rows.h"
#include "kernels/layer/column_sums_cuda.h"
#include "kernels/layer/fp8_cuda.h"
#include "kernels/layer/rms_norm.h"

namespace augur {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostVectors = 4;  // of a row, held by one thread
constexpr int64_t kPartialRows = 264;

// One row per block, its values kept in registers: memory is read once. kVectors of a row per thread.
template <typename E, int kVector, int kVectors>
__global__ void __launch_bounds__(kMostThreads)
    ForwardKernel(int width, const E* x, const int32_t* gather, const E* delta, const float* product,
                  ProductScale product_scale, const E* weight, float eps, E* sum, E* y, float* inverse,
                  uint8_t* quantised, float* scale) {
  __shared__ float shared[2][32];
  Overlap();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  const E* from = x + static_cast<int64_t>(gather ? gather[blockIdx.x] : blockIdx.x) * width;
  float values[kVectors][kVector];
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (v * blockDim.x + threadIdx.x) * kVector;
    if (i >= width) continue;
    LoadVector<kVector>(from + i, values[v]);
    if (delta != nullptr || product != nullptr) {
      float add[kVector];
      if (product != nullptr) {
        LoadFloats<kVector>(product + row + i, add);
        Rescale<kVector>(add, product_scale.row[blockIdx.x], product_scale.column + i);
#pragma unroll
        for (int k = 0; k < kVector; ++k) add[k] = static_cast<float>(static_cast<E>(add[k]));
      } else {
        LoadVector<kVector>(delta + row + i, add);
      }
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        values[v][k] = static_cast<float>(static_cast<E>(values[v][k] + add[k]));
      }
    }
    if (sum != nullptr) StoreVector<kVector>(values[v], sum + row + i);
#pragma unroll
    for (int k = 0; k < kVector; ++k) squares += values[v][k] * values[v][k];
  }
  squares = BlockSum(squares, shared[0]);
  const float factor = rsqrtf(squares / static_cast<float>(width) + eps);
  if (inverse != nullptr && threadIdx.x == 0) inverse[blockIdx.x] = factor;
  float largest = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (v * blockDim.x + threadIdx.x) * kVector;
    if (i >= width) continue;
    float by[kVector];
    LoadVector<kVector>(weight + i, by);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      values[v][k] = static_cast<float>(static_cast<E>(values[v][k] * factor * by[k]));
      largest = fmaxf(largest, fabsf(values[v][k]));
    }
    if (y != nullptr) StoreVector<kVector>(values[v], y + row + i);
  }
  if (quantised == nullptr) return;
  const float by = E4m3Scale(BlockMax(largest, shared[1]));
  if (threadIdx.x == 0) scale[blockIdx.x] = by;
  const RowDivisor divide(by);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (v * blockDim.x + threadIdx.x) * kVector;
    if (i < width) StoreFp8<kVector>(values[v], divide, quantised + row + i);
  }
}

// A block takes every gridDim.x-th row and keeps its part of the weight's gradient in registers.
template <typename E, int kVector, int kVectors>
__global__ void __launch_bounds__(kMostThreads)
    BackwardKernel(int64_t rows, int width, const E* x, const E* weight, const float* inverse,
                   const E* grad_y, const E* extra, E* grad_x, float* partial) {
  __shared__ float shared[2][32];
  float grad_weight[kVectors][kVector] = {};
  int turn = 0;  // two buffers, so that one barrier a row is enough
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x, turn ^= 1) {
    const float factor = inverse[r];
    float values[kVectors][kVector], grads[kVectors][kVector];
    float along = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = (v * blockDim.x + threadIdx.x) * kVector;
      if (i >= width) continue;
      float by[kVector];
      LoadVector<kVector>(x + r * width + i, values[v]);
      LoadVector<kVector>(grad_y + r * width + i, grads[v]);
      LoadVector<kVector>(weight + i, by);
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        grad_weight[v][k] += grads[v][k] * values[v][k] * factor;
        grads[v][k] *= by[k];
        along += grads[v][k] * values[v][k];
      }
    }
    along = BlockSum(along, shared[turn]);
    const float back = along * factor * factor * factor / static_cast<float>(width);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = (v * blockDim.x + threadIdx.x) * kVector;
      if (i >= width) continue;
      float more[kVector] = {};
      if (extra != nullptr) LoadVector<kVector>(extra + r * width + i, more);
#pragma unroll
      for (int k = 0; k < kVector; ++k) grads[v][k] = grads[v][k] * factor - values[v][k] * back + more[k];
      StoreVector<kVector>(grads[v], grad_x + r * width + i);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (v * blockDim.x + threadIdx.x) * kVector;
    if (i >= width) continue;
    for (int k = 0; k < kVector; ++k)
      partial[blockIdx.x * static_cast<int64_t>(width) + i + k] = grad_weight[v][k];
  }
}

// Calls f<kVector, kVectors>(threads) with how a row of this width is divided.
template <typename E, typename F>
void WithDivision(int64_t width, bool aligned, F f) {
  constexpr int kWide = 16 / sizeof(E);
  const bool wide = aligned && width % kWide == 0;
  const int64_t vectors = wide ? width / kWide : width;
  if (vectors > static_cast<int64_t>(kMostThreads) * kMostVectors) {
    ThrowCudaError("RMSNorm on the GPU", "the rows are too wide for the kernel");
  }
  const bool many = vectors > kMostThreads;
  const int64_t share = many ? (vectors + kMostVectors - 1) / kMostVectors : vectors;
  const auto threads = static_cast<unsigned>((share + 31) / 32 * 32);
  if (wide) {
    many ? f.template operator()<kWide, kMostVectors>(threads) : f.template operator()<kWide, 1>(threads);
  } else {
    f.template operator()<1, kMostVectors>(
        static_cast<unsigned>(((vectors + kMostVectors - 1) / kMostVectors + 31) / 32 * 32));
  }
}

template <typename... P>
bool Aligned(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace

template <typename T>
void RmsNormForwardCuda(const RmsNormRows<T>& in, void* stream) {
  if (in.rows == 0) return;
  using E = typename CudaElement<T>::Type;
  const bool aligned =
      Aligned(in.x, in.delta, in.weight, in.sum, in.y, in.quantised, in.product, in.product_scale.column);
  WithDivision<E>(in.width, aligned, [&]<int kVector, int kVectors>(unsigned threads) {
    LaunchEarlyIfSmall(ForwardKernel<E, kVector, kVectors>, static_cast<unsigned>(in.rows), threads, 0,
                       static_cast<cudaStream_t>(stream), static_cast<int>(in.width), OnDevice(in.x),
                       in.gather, OnDevice(in.delta), in.product, in.product_scale, OnDevice(in.weight),
                       in.eps, OnDevice(in.sum), OnDevice(in.y), in.inverse, in.quantised, in.scale);
  });
  CheckCuda(cudaGetLastError(), "RMSNorm on the GPU");
}

int64_t RmsNormPartialRows(int64_t rows) { return rows < kPartialRows ? rows : kPartialRows; }

template <typename T>
void RmsNormBackwardCuda(int64_t rows, int64_t width, const T* x, const T* weight, const float* inverse,
                         const T* grad_y, const T* extra, T* grad_x, float* partial, float* grad_weight,
                         void* stream) {
  using E = typename CudaElement<T>::Type;
  const auto queue = static_cast<cudaStream_t>(stream);
  const int64_t blocks = RmsNormPartialRows(rows);
  if (rows > 0) {
    const bool aligned = Aligned(x, weight, grad_y, extra, grad_x);
    WithDivision<E>(width, aligned, [&]<int kVector, int kVectors>(unsigned threads) {
      BackwardKernel<E, kVector, kVectors><<<static_cast<unsigned>(blocks), threads, 0, queue>>>(
          rows, static_cast<int>(width), OnDevice(x), OnDevice(weight), inverse, OnDevice(grad_y),
          OnDevice(extra), OnDevice(grad_x), partial);
    });
  }
  SumColumns(blocks, width, partial, grad_weight, queue);
  CheckCuda(cudaGetLastError(), "the gradient of RMSNorm on the GPU");
}

#define AUGUR_INSTANTIATE(T)                                                                         \
  template void RmsNormForwardCuda<T>(const RmsNormRows<T>&, void*);                                 \
  template void RmsNormBackwardCuda<T>(int64_t, int64_t, const T*, const T*, const float*, const T*, \
                                       const T*, T*, float*, float*, void*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
