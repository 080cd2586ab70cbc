// Hopper's copies of whole tiles to shared memory, and the barriers that tell when they have come. For .cu
// files only.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/decode/tensor_cores_cuda.h"

namespace augur {

#ifdef AUGUR_HOPPER
#define AUGUR_ASM(...) asm volatile(__VA_ARGS__)
#else
#define AUGUR_ASM(...)
#endif

// Barriers are eight bytes of shared memory. A phase ends when so many arrived and all expected bytes came.
__device__ __forceinline__ void InitBarrier(uint32_t barrier, int arrivals) {
  AUGUR_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers known to copies; a barrier of the block follows.
__device__ __forceinline__ void PublishBarriers() {
  AUGUR_ASM("fence.mbarrier_init.release.cluster;" :: : "memory");
}
__device__ __forceinline__ void ArriveExpecting(uint32_t barrier, int bytes) {
  AUGUR_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void Arrive(uint32_t barrier) {
  AUGUR_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Until the phase of this parity is over.
__device__ __forceinline__ void WaitBarrier(uint32_t barrier, uint32_t parity) {
  uint32_t done = 1;
  do {
    AUGUR_ASM(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(
            done) : "r"(barrier),
        "r"(parity) : "memory");
  } while (done == 0);
}

// Has the map at hand before the first copy by it.
__device__ __forceinline__ void PrefetchMap(const CUtensorMap* map) {
  AUGUR_ASM("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// The tile at column x, row y of a matrix to shared memory; zeros where the matrix has ended.
__device__ __forceinline__ void CopyTile(uint32_t to, const CUtensorMap* map, int x, int y,
                                         uint32_t barrier) {
  AUGUR_ASM(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");
}
// The same for what is read once.
__device__ __forceinline__ void CopyTileOnce(uint32_t to, const CUtensorMap* map, int x, int y,
                                             uint32_t barrier) {
  AUGUR_ASM(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier),
      "l"(0x12f0000000000000ull)  // evict first
      : "memory");
}
#undef AUGUR_ASM

}  // namespace augur
