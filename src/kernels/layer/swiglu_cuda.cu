#include "kernels/cuda_check.h"
#include "kernels/cuda_overlap.h"
#include "kernels/cuda_rows.h"
#include "kernels/layer/fp8_cuda.h"
#include "kernels/layer/swiglu.h"

namespace augur {
namespace {

constexpr int kThreads = 256;
constexpr int kQuantiseThreads = 640;  // at most

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

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
  for (int k = 0; k < kVector; ++k) out[k] = g[k] * Sigmoid(g[k]) * u[k];
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

template <typename E, int kVector>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(int64_t vectors, int64_t width, const E* gate_up, const E* grad_out, E* grad_gate_up) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
  if (i >= vectors * kVector) return;
  const int64_t at = i + i / width * width;
  float g[kVector], u[kVector], d[kVector];
  LoadVector<kVector>(gate_up + at, g);
  LoadVector<kVector>(gate_up + at + width, u);
  LoadVector<kVector>(grad_out + i, d);
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const float sigmoid = Sigmoid(g[k]), grad = d[k];
    d[k] = grad * g[k] * sigmoid;
    g[k] = grad * u[k] * sigmoid * (1.0f + g[k] * (1.0f - sigmoid));
  }
  StoreVector<kVector>(g, grad_gate_up + at);
  StoreVector<kVector>(d, grad_gate_up + at + width);
}

template <typename E>
bool Wide(int64_t width, const void* a, const void* b, const void* c) {
  const auto address =
      reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | reinterpret_cast<uintptr_t>(c);
  return address % 16 == 0 && width % (16 / static_cast<int64_t>(sizeof(E))) == 0;
}

unsigned Blocks(int64_t vectors) { return static_cast<unsigned>((vectors + kThreads - 1) / kThreads); }

template <typename E, int kVector>
void Quantise(int64_t rows, int64_t width, const E* gate_up, const ProductScale& gate_up_scale, E* out,
              uint8_t* quantised, float* scale, cudaStream_t stream) {
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
void SwigluBackwardCuda(int64_t rows, int64_t width, const T* gate_up, const T* grad_out, T* grad_gate_up,
                        void* stream) {
  if (rows == 0) return;
  using E = typename CudaElement<T>::Type;
  constexpr int kWide = 16 / sizeof(E);
  const auto queue = static_cast<cudaStream_t>(stream);
  if (Wide<E>(width, gate_up, grad_out, grad_gate_up)) {
    const int64_t vectors = rows * width / kWide;
    BackwardKernel<E, kWide><<<Blocks(vectors), kThreads, 0, queue>>>(
        vectors, width, OnDevice(gate_up), OnDevice(grad_out), OnDevice(grad_gate_up));
  } else {
    BackwardKernel<E, 1><<<Blocks(rows * width), kThreads, 0, queue>>>(
        rows * width, width, OnDevice(gate_up), OnDevice(grad_out), OnDevice(grad_gate_up));
  }
  CheckCuda(cudaGetLastError(), "the gradient of SwiGLU on the GPU");
}

#define AUGUR_INSTANTIATE(T)                                                                                \
  template void SwigluForwardCuda<T>(int64_t, int64_t, const T*, const ProductScale&, T*, uint8_t*, float*, \
                                     void*);                                                                \
  template void SwigluBackwardCuda<T>(int64_t, int64_t, const T*, const T*, T*, void*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
