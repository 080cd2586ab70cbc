// What the blocks of a Hopper cluster share: a barrier, and each other's shared memory. For .cu files only.
#pragma once

#include <cstdint>

#include "kernels/decode/tensor_cores_cuda.h"

namespace augur {

#ifdef AUGUR_HOPPER
#define AUGUR_ASM(...) asm volatile(__VA_ARGS__)
#else
#define AUGUR_ASM(...)
#endif

// A barrier of all threads of the cluster: what they wrote to shared memory before it can be read after it.
__device__ __forceinline__ void SyncCluster() {
  __syncwarp();
  AUGUR_ASM("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" :: : "memory");
}

// The last one before a block ends, whose shared memory others may still be reading: it orders no writes, and
// waits for none. What was read must have been used before, by a write to memory say.
__device__ __forceinline__ void LeaveCluster() {
  __syncwarp();
  AUGUR_ASM("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" :: : "memory");
}

// Four floats from the shared memory of the cluster's block `rank`, where this block has `address`.
__device__ __forceinline__ float4 LoadFromBlock(uint32_t address, int rank) {
  float4 x{};
  AUGUR_ASM(
      "{.reg .b32 there; mapa.shared::cluster.u32 there, %4, %5; ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, "
      "[there];}" : "=f"(x.x),
      "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(address), "r"(rank) : "memory");
  return x;
}
#undef AUGUR_ASM

}  // namespace augur
