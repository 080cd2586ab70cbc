#include "kernels/cuda_check.h"
#include "kernels/cuda_overlap.h"
#include "kernels/cuda_rows.h"
#include "kernels/layer/fp8_cuda.h"
#include "kernels/layer/swiglu.h"
#include "kernels/layer/swiglu_cuda.h"

namespace augur {
namespace {

constexpr int kThreads = 256;
constexpr int kQuantiseThreads = 640;  // at most
constexpr int64_t kManyRows = 1024, kManyThreads = 320;
constexpr size_t kMostShared = 40 << 10;

// Of row `row` at column `i`.
template <typename E, int kVector>
__device__ __forceinline__ void Gated(const E* gate_up, const ProductScale& scale, int64_t row, int64_t width,
                                      int64_t i, float out[kVector]) {
  const E* gate = gate_up + row * 2 * width + i;
  float g[kVector], u[kVector];
  LoadVector<kVector>(gate, g);
  LoadVector<kVector>(gate + width, u);
  if (scale.row != nullptr) {
    Rescale<kVector>(g, scale.row[row], scale.column + i);
    Rescale<kVector>(u, scale.row[row], scale.column + width + i);
  }
#pragma unroll
  for (int k = 0; k < kVector; ++k) out[k] = Swiglu(g[k], u[k]);
}

template <typename E, int kVector>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(int64_t vectors, int64_t width, const E* gate_up, ProductScale scale, E* out) {
  Overlap();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
  if (i >= vectors * kVector) return;
  const int64_t row = i / width;
  float values[kVector];
  Gated<E, kVector>(gate_up, scale, row, width, i - row * width, values);
  StoreVector<kVector>(values, out + i);
}

// One row per block, kept in registers between finding its scale and rounding it: kVectors by each thread.
template <typename E, int kVector, int kVectors>
__global__ void __launch_bounds__(kQuantiseThreads)
    QuantiseKernel(int width, const E* gate_up, ProductScale gate_up_scale, E* out, uint8_t* quantised,
                   float* scale) {
  __shared__ float shared[32];
  Overlap();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  float values[kVectors][kVector];
  float largest = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (v * blockDim.x + threadIdx.x) * kVector;
    if (i >= width) continue;
    Gated<E, kVector>(gate_up, gate_up_scale, blockIdx.x, width, i, values[v]);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      values[v][k] = static_cast<float>(static_cast<E>(values[v][k]));
      largest = fmaxf(largest, fabsf(values[v][k]));
    }
    if (out != nullptr) StoreVector<kVector>(values[v], out + row + i);
  }
  const float by = E4m3Scale(BlockMax(largest, shared));
  if (threadIdx.x == 0) scale[blockIdx.x] = by;
  const RowDivisor divide(by);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = (v * blockDim.x + threadIdx.x) * kVector;
    if (i < width) StoreFp8<kVector>(values[v], divide, quantised + row + i);
  }
}

// The same for many rows: kept in shared memory, so that more blocks run at once.
template <typename E, int kVector>
__global__ void __launch_bounds__(kQuantiseThreads)
    QuantiseManyKernel(int width, const E* gate_up, ProductScale gate_up_scale, E* out, uint8_t* quantised,
                       float* scale) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ float shared[32];
  E* kept = reinterpret_cast<E*>(memory);  // [width]; a thread reads what it has written
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  float values[kVector];
  float largest = 0;
  for (int i = threadIdx.x * kVector; i < width; i += blockDim.x * kVector) {
    Gated<E, kVector>(gate_up, gate_up_scale, blockIdx.x, width, i, values);
#pragma unroll
    for (int k = 0; k < kVector; ++k) largest = fmaxf(largest, fabsf(values[k]));
    StoreVector<kVector>(values, kept + i);
    if (out != nullptr) StoreVector<kVector>(values, out + row + i);
  }
  const float by = E4m3Scale(static_cast<float>(static_cast<E>(BlockMax(largest, shared))));
  if (threadIdx.x == 0) scale[blockIdx.x] = by;
  const RowDivisor divide(by);
  for (int i = threadIdx.x * kVector; i < width; i += blockDim.x * kVector) {
    LoadVector<kVector>(kept + i, values);
    StoreFp8<kVector>(values, divide, quantised + row + i);
  }
}

// The gradients of row `row` at column `column`.
template <typename E, int kVector>
__device__ __forceinline__ void GatedGradient(int64_t width, const E* gate_up, const ProductScale& scale,
                                              const E* grad_out, const SwigluGradient<E>& to, int64_t row,
                                              int64_t column, float grad_gate[kVector],
                                              float grad_up[kVector]) {
  const int64_t i = row * width + column, at = i + row * width;
  float g[kVector], u[kVector], d[kVector];
  LoadVector<kVector>(gate_up + at, g);
  LoadVector<kVector>(gate_up + at + width, u);
  LoadVector<kVector>(grad_out + i, d);
  if (scale.row != nullptr) {
    Rescale<kVector>(g, scale.row[row], scale.column + column);
    Rescale<kVector>(u, scale.row[row], scale.column + width + column);
  }
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const float sigmoid = Sigmoid(g[k]);
    grad_up[k] = d[k] * g[k] * sigmoid;
    grad_gate[k] = d[k] * u[k] * sigmoid * (1.0f + g[k] * (1.0f - sigmoid));
    d[k] = Swiglu(g[k], u[k]);
  }
  if (to.out != nullptr) StoreVector<kVector>(d, to.out + i);
  StoreVector<kVector>(grad_gate, to.grad_gate_up + at);
  StoreVector<kVector>(grad_up, to.grad_gate_up + at + width);
}

template <typename E, int kVector>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(int64_t vectors, int64_t width, const E* gate_up, ProductScale scale, const E* grad_out,
                   SwigluGradient<E> to) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
  if (i >= vectors * kVector) return;
  float grad_gate[kVector], grad_up[kVector];
  const int64_t row = i / width;
  GatedGradient<E, kVector>(width, gate_up, scale, grad_out, to, row, i - row * width, grad_gate, grad_up);
}

// One row per block. What a thread has written it reads again, from the cache, once the scale is known.
template <typename E, int kVector>
__global__ void __launch_bounds__(kQuantiseThreads)
    BackwardQuantiseKernel(int width, const E* gate_up, ProductScale scale, const E* grad_out,
                           SwigluGradient<E> to) {
  __shared__ float shared[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * width;
  float values[2][kVector];
  float largest = 0;
  for (int i = threadIdx.x * kVector; i < width; i += blockDim.x * kVector) {
    GatedGradient<E, kVector>(width, gate_up, scale, grad_out, to, blockIdx.x, i, values[0], values[1]);
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      largest = fmaxf(largest, fmaxf(fabsf(values[0][k]), fabsf(values[1][k])));
    }
  }
  const float by = E4m3Scale(static_cast<float>(static_cast<E>(BlockMax(largest, shared))));
  if (threadIdx.x == 0) to.scale[blockIdx.x] = by;
  const RowDivisor divide(by);
  for (int i = threadIdx.x * kVector; i < width; i += blockDim.x * kVector) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int64_t at = 2 * row + part * width + i;
      LoadVector<kVector>(to.grad_gate_up + at, values[part]);
      StoreFp8<kVector>(values[part], divide, to.quantised + at);
    }
  }
}

template <typename E>
bool Wide(int64_t width, const void* a, const void* b, const void* c) {
  const auto address =
      reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | reinterpret_cast<uintptr_t>(c);
  return address % 16 == 0 && width % (16 / static_cast<int64_t>(sizeof(E))) == 0;
}

// Whole warps, at most so many threads, each of which takes about as many of a row's vectors.
unsigned EvenThreads(int64_t vectors, int64_t most) {
  const int64_t turns = (vectors + most - 1) / most;
  return static_cast<unsigned>(((vectors + turns - 1) / turns + 31) / 32 * 32);
}

unsigned Blocks(int64_t vectors) { return static_cast<unsigned>((vectors + kThreads - 1) / kThreads); }

template <typename E, int kVector>
void Quantise(int64_t rows, int64_t width, const E* gate_up, const ProductScale& gate_up_scale, E* out,
              uint8_t* quantised, float* scale, cudaStream_t stream) {
  const size_t bytes = width * sizeof(E);
  if (rows >= kManyRows && bytes <= kMostShared) {
    QuantiseManyKernel<E, kVector>
        <<<static_cast<unsigned>(rows), EvenThreads(width / kVector, kManyThreads), bytes, stream>>>(
            static_cast<int>(width), gate_up, gate_up_scale, out, quantised, scale);
    return;
  }
  const auto launch = [&]<int kVectors>() {
    const int64_t threads = (width + kVector * kVectors - 1) / (kVector * kVectors);
    if (threads > kQuantiseThreads) return false;
    LaunchEarlyIfSmall(QuantiseKernel<E, kVector, kVectors>, static_cast<unsigned>(rows),
                       static_cast<unsigned>((threads + 31) / 32 * 32), 0, stream, static_cast<int>(width),
                       gate_up, gate_up_scale, out, quantised, scale);
    return true;
  };
  if (!launch.template operator()<1>() && !launch.template operator()<2>() &&
      !launch.template operator()<4>() && !launch.template operator()<8>()) {
    ThrowCudaError("SwiGLU on the GPU", "the rows are too wide for the quantising kernel");
  }
}

}  // namespace

template <typename T>
void SwigluForwardCuda(int64_t rows, int64_t width, const T* gate_up, const ProductScale& gate_up_scale,
                       T* out, uint8_t* quantised, float* scale, void* stream) {
  if (rows == 0) return;
  using E = typename CudaElement<T>::Type;
  constexpr int kWide = 16 / sizeof(E);
  const auto queue = static_cast<cudaStream_t>(stream);
  const bool wide = Wide<E>(width, gate_up, out, quantised);
  const auto* from = OnDevice(gate_up);
  if (quantised != nullptr) {
    wide ? Quantise<E, kWide>(rows, width, from, gate_up_scale, OnDevice(out), quantised, scale, queue)
         : Quantise<E, 1>(rows, width, from, gate_up_scale, OnDevice(out), quantised, scale, queue);
  } else if (wide) {
    const int64_t vectors = rows * width / kWide;
    LaunchEarlyIfSmall(ForwardKernel<E, kWide>, Blocks(vectors), kThreads, 0, queue, vectors, width, from,
                       gate_up_scale, OnDevice(out));
  } else {
    LaunchEarlyIfSmall(ForwardKernel<E, 1>, Blocks(rows * width), kThreads, 0, queue, rows * width, width,
                       from, gate_up_scale, OnDevice(out));
  }
  CheckCuda(cudaGetLastError(), "SwiGLU on the GPU");
}

template <typename T>
void SwigluBackwardCuda(int64_t rows, int64_t width, const T* gate_up, const ProductScale& gate_up_scale,
                        const T* grad_out, const SwigluGradient<T>& to, void* stream) {
  if (rows == 0) return;
  using E = typename CudaElement<T>::Type;
  constexpr int kWide = 16 / sizeof(E);
  const auto queue = static_cast<cudaStream_t>(stream);
  const SwigluGradient<E> there{OnDevice(to.grad_gate_up), OnDevice(to.out), to.quantised, to.scale};
  const bool wide =
      Wide<E>(width, gate_up, grad_out, to.grad_gate_up) && Wide<E>(width, to.out, to.quantised, nullptr);
  const auto launch = [&]<int kVector>() {
    const int64_t vectors = rows * width / kVector;
    if (to.quantised != nullptr) {
      BackwardQuantiseKernel<E, kVector>
          <<<static_cast<unsigned>(rows), EvenThreads(width / kVector, kQuantiseThreads), 0, queue>>>(
              static_cast<int>(width), OnDevice(gate_up), gate_up_scale, OnDevice(grad_out), there);
    } else {
      BackwardKernel<E, kVector><<<Blocks(vectors), kThreads, 0, queue>>>(
          vectors, width, OnDevice(gate_up), gate_up_scale, OnDevice(grad_out), there);
    }
  };
  wide ? launch.template operator()<kWide>() : launch.template operator()<1>();
  CheckCuda(cudaGetLastError(), "the gradient of SwiGLU on the GPU");
}

#define AUGUR_INSTANTIATE(T)                                                                                \
  template void SwigluForwardCuda<T>(int64_t, int64_t, const T*, const ProductScale&, T*, uint8_t*, float*, \
                                     void*);                                                                \
  template void SwigluBackwardCuda<T>(int64_t, int64_t, const T*, const ProductScale&, const T*,            \
                                      const SwigluGradient<T>&, void*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
