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
  for (int64_t i = threadIdx.x * kVector; i < width; i += kThreads * kVector) {
    LoadVector<kVector>(x + row + i, values);
    StoreFp8<kVector>(values, by, quantised + row + i);
  }
}

}  // namespace

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

}  // namespace augur
