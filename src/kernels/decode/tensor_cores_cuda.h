// Hopper's tensor cores as a warpgroup uses them: both factors in shared memory, sums in registers. For .cu
// files only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace augur {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define AUGUR_HOPPER 1
#endif

// sums += a b' for 64 rows of a, kN rows of b and 32 bytes of their width; E is bfloat16, or uint8_t for
// e4m3. A thread holds rows warp * 16 + lane / 4 and + 8, of b's rows 8 n + lane % 4 * 2 and the next:
// [4 n ..].
template <typename E, int kN>
struct TensorCores;

#define AUGUR_WGMMA(kN, SHAPE, SUMS, NEXT0, NEXT1, ...)                                                 \
  template <>                                                                                           \
  struct TensorCores<__nv_bfloat16, kN> {                                                               \
    static __device__ __forceinline__ void MultiplyAdd(float (&d)[kN / 2], uint64_t a, uint64_t b) {    \
      AUGUR_WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n" SHAPE "k16.f32.bf16.bf16 {" SUMS "}, %" NEXT0 \
                      ", %" NEXT1 ", p, 1, 1, 0, 0;",                                                   \
                      __VA_ARGS__);                                                                     \
    }                                                                                                   \
  };                                                                                                    \
  template <>                                                                                           \
  struct TensorCores<uint8_t, kN> {                                                                     \
    static __device__ __forceinline__ void MultiplyAdd(float (&d)[kN / 2], uint64_t a, uint64_t b) {    \
      AUGUR_WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n" SHAPE "k32.f32.e4m3.e4m3 {" SUMS "}, %" NEXT0 \
                      ", %" NEXT1 ", p, 1, 1;",                                                         \
                      __VA_ARGS__);                                                                     \
    }                                                                                                   \
  }
#ifdef AUGUR_HOPPER
#define AUGUR_WGMMA_ASM(CODE, ...) \
  asm volatile("{.reg .pred p; setp.eq.u32 p, 1, 1; " CODE "}" : __VA_ARGS__ : "l"(a), "l"(b))
#else
#define AUGUR_WGMMA_ASM(CODE, ...)
#endif
#define AUGUR_SUMS(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define AUGUR_4 "%0, %1, %2, %3"
#define AUGUR_8 AUGUR_4 ", %4, %5, %6, %7"
#define AUGUR_16 AUGUR_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define AUGUR_32 AUGUR_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
AUGUR_WGMMA(8, "8", AUGUR_4, "4", "5", AUGUR_SUMS(0));
AUGUR_WGMMA(16, "16", AUGUR_8, "8", "9", AUGUR_SUMS(0), AUGUR_SUMS(4));
AUGUR_WGMMA(32, "32", AUGUR_16, "16", "17", AUGUR_SUMS(0), AUGUR_SUMS(4), AUGUR_SUMS(8), AUGUR_SUMS(12));
AUGUR_WGMMA(64, "64", AUGUR_32, "32", "33", AUGUR_SUMS(0), AUGUR_SUMS(4), AUGUR_SUMS(8), AUGUR_SUMS(12),
            AUGUR_SUMS(16), AUGUR_SUMS(20), AUGUR_SUMS(24), AUGUR_SUMS(28));
#define AUGUR_48 AUGUR_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define AUGUR_64 AUGUR_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define AUGUR_80 AUGUR_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define AUGUR_SUMS16(i) AUGUR_SUMS(i), AUGUR_SUMS(i + 4), AUGUR_SUMS(i + 8), AUGUR_SUMS(i + 12)
#define AUGUR_SUMS48 AUGUR_SUMS16(0), AUGUR_SUMS16(16), AUGUR_SUMS16(32)
AUGUR_WGMMA(96, "96", AUGUR_48, "48", "49", AUGUR_SUMS48);
AUGUR_WGMMA(160, "160", AUGUR_80, "80", "81", AUGUR_SUMS48, AUGUR_SUMS16(48), AUGUR_SUMS16(64));
#undef AUGUR_SUMS48
#undef AUGUR_SUMS16
#undef AUGUR_80
#undef AUGUR_64
#undef AUGUR_48
#undef AUGUR_32
#undef AUGUR_16
#undef AUGUR_8
#undef AUGUR_4
#undef AUGUR_SUMS
#undef AUGUR_WGMMA_ASM
#undef AUGUR_WGMMA

#ifdef AUGUR_HOPPER
#define AUGUR_ASM(...) asm volatile(__VA_ARGS__)
#else
#define AUGUR_ASM(...)
#endif

__device__ __forceinline__ void BeginMultiply() { AUGUR_ASM("wgmma.fence.sync.aligned;\n" :: : "memory"); }
__device__ __forceinline__ void CommitMultiply() {
  AUGUR_ASM("wgmma.commit_group.sync.aligned;\n" :: : "memory");
}
// All but the last kOpen commits are done.
template <int kOpen = 0>
__device__ __forceinline__ void WaitMultiply() {
  AUGUR_ASM("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kOpen) : "memory");
}
#undef AUGUR_ASM

inline constexpr int kSwizzledBytes = 128;  // of a row that the tensor cores find in one place

// How they find rows of 128 bytes, swizzled, at an address of shared memory.
__device__ __forceinline__ uint64_t Swizzled(uint32_t address) {
  constexpr uint64_t kEightRows = (8 * kSwizzledBytes) >> 4, kSwizzle128 = 1;
  return (address >> 4 & 0x3fff) | uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}

}  // namespace augur
