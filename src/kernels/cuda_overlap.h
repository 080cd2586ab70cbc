// Kernels that start before the one in front of them in the stream is done (programmatic dependent launch):
// their blocks are placed, and what they can do without its results is done, while it runs. For .cu files
// only.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "kernels/gpu_generation.h"

namespace augur {

// Lets the next kernel of the stream start, if it was launched by LaunchEarly, once every block has come
// here.
__device__ __forceinline__ void LetNextStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until all kernels before this one are done. Every block of a kernel launched by LaunchEarly calls it
// before it reads or writes what they do.
__device__ __forceinline__ void WaitForEarlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Both, at the beginning of a kernel.
__device__ __forceinline__ void Overlap() {
  LetNextStart();
  WaitForEarlier();
}

// kernel<<<grid, threads, shared, stream>>>(arguments...), started early where `early` says so and the GPU
// can, `cluster` consecutive blocks in one cluster; GPUs before Hopper know only clusters of one. Errors are
// left for cudaGetLastError.
template <typename... P, typename... A>
void LaunchEarlyIf(bool early, unsigned cluster, void (*kernel)(P...), dim3 grid, unsigned threads,
                   size_t shared, cudaStream_t stream, A&&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  if (early && StartsEarly()) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(arguments))...);
}

template <typename... P, typename... A>
void LaunchEarly(void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, cudaStream_t stream,
                 A&&... arguments) {
  LaunchEarlyIf(true, 1, kernel, grid, threads, shared, stream, std::forward<A>(arguments)...);
}

// The same in clusters of up to eight blocks, of which the grid is a multiple.
template <typename... P, typename... A>
void LaunchClustersEarly(unsigned cluster, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared,
                         cudaStream_t stream, A&&... arguments) {
  LaunchEarlyIf(true, cluster, kernel, grid, threads, shared, stream, std::forward<A>(arguments)...);
}

// Early if it leaves most of the GPU to the kernels around it. A larger one gains nothing by that, and takes
// room from the one it waits for.
template <typename... P, typename... A>
void LaunchEarlyIfSmall(void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, cudaStream_t stream,
                        A&&... arguments) {
  constexpr uint64_t kSmall = 100000;  // threads
  const bool small = static_cast<uint64_t>(grid.x) * grid.y * grid.z * threads < kSmall;
  LaunchEarlyIf(small, 1, kernel, grid, threads, shared, stream, std::forward<A>(arguments)...);
}

}  // namespace augur
