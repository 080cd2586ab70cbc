// The product of a few rows with many: a tile of 128 rows of a weight, which are read from memory once, times
// the rows of some tokens, on Hopper's tensor cores. What it takes is the memory's bandwidth, so a block
// keeps several stages of the weight on their way. The weight's rows are the tensor cores' M, the tokens
// their N: a token's result is the same whatever tokens are beside it. For .cu files only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace augur {

inline constexpr int kFewRowsThreads = 128;     // one warpgroup
inline constexpr int kFewRowsTile = 128;        // rows of the weight, in two halves
inline constexpr int kFewRowsStageBytes = 128;  // of a row
inline constexpr int kFewRowsVectors = kFewRowsStageBytes / 16;
inline constexpr int kFewRowsHalf = kFewRowsTile / 2;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define AUGUR_HOPPER 1
#endif

// sums += weight rows x tokens, for 64 rows, kN tokens and 32 bytes of the width; E is bfloat16, or uint8_t
// for e4m3. A thread holds rows warp * 16 + lane / 4 and + 8 of tokens 8 n + lane % 4 * 2 and the next: [4 n
// ..].
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

// What copies wrote is seen by the tensor cores after this and a barrier.
__device__ __forceinline__ void PublishCopies() {
  AUGUR_ASM("fence.proxy.async.shared::cta;\n" :: : "memory");
}
__device__ __forceinline__ void BeginMultiply() { AUGUR_ASM("wgmma.fence.sync.aligned;\n" :: : "memory"); }
__device__ __forceinline__ void CommitMultiply() {
  AUGUR_ASM("wgmma.commit_group.sync.aligned;\n" :: : "memory");
}
__device__ __forceinline__ void WaitMultiply() {
  AUGUR_ASM("wgmma.wait_group.sync.aligned 0;\n" :: : "memory");
}

// 16 bytes to shared memory, zeros where not `there`.
__device__ __forceinline__ void CopyAsync(uint32_t to, const uint8_t* from, bool there) {
  AUGUR_ASM("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from),
            "r"(there ? 16 : 0));
}
__device__ __forceinline__ void CommitCopies() { AUGUR_ASM("cp.async.commit_group;\n" :: : "memory"); }
template <int kOpen>
__device__ __forceinline__ void WaitCopies() {
  AUGUR_ASM("cp.async.wait_group %0;\n" ::"n"(kOpen) : "memory");
}
#undef AUGUR_ASM

// Where vector `v` of a tile's row lies in its stage: as the tensor cores swizzle rows of 128 bytes.
__device__ __forceinline__ uint32_t VectorAt(int row, int v) {
  return static_cast<uint32_t>(row * kFewRowsStageBytes + ((v ^ (row & 7)) << 4));
}

// How the tensor cores find rows of 128 bytes, swizzled, at an address of shared memory.
__device__ __forceinline__ uint64_t Swizzled(uint32_t address) {
  constexpr uint64_t kEightRows = (8 * kFewRowsStageBytes) >> 4, kSwizzle128 = 1;
  return (address >> 4 & 0x3fff) | uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}

// The weight's rows of a tile from `first` on. Gated, its halves are rows of gate and the same rows of up,
// `limit` further on.
template <bool kGated>
struct WeightTile {
  static constexpr int kWidth = kGated ? kFewRowsHalf : kFewRowsTile;  // of the product

  const uint8_t* weight;
  int64_t row_bytes;  // a multiple of 16
  int first, limit;   // of the rows, gated of gate's

  // Tile row 16 j + within.
  __device__ __forceinline__ int64_t Row(int j, int within) const {
    return kGated ? first + j % 4 * 16 + within + (j < 4 ? 0 : limit) : first + j * 16 + within;
  }
  __device__ __forceinline__ bool Has(int j, int within) const {
    return first + (kGated ? j % 4 : j) * 16 + within < limit;
  }
};

// The pipeline of one block, over bytes [begin, end) of the rows, which are multiples of 16.
template <typename E, bool kGated, int kMostTokens, int kStages>
struct FewRows {
  static constexpr int kWeightBytes = kFewRowsTile * kFewRowsStageBytes;
  static constexpr int kBytes = kWeightBytes + kMostTokens * kFewRowsStageBytes;  // of a stage
  static constexpr int kShared = kStages * kBytes;

  uint32_t shared;  // of kShared bytes, aligned to 1024
  WeightTile<kGated> tile;
  int64_t begin, end;

  __device__ __forceinline__ void LoadWeight(int stage, int step) const {
    const int vector = threadIdx.x % kFewRowsVectors, within = threadIdx.x / kFewRowsVectors;
    const int64_t at = begin + step * kFewRowsStageBytes + vector * 16;
    const uint32_t to = shared + stage * kBytes + VectorAt(within, vector);
    const uint8_t* from = tile.weight + tile.Row(0, within) * tile.row_bytes + at;
#pragma unroll
    for (int j = 0; j < kFewRowsTile / 16; ++j) {
      const bool there = at < end && tile.Has(j, within);
      const int64_t further = (tile.Row(j, within) - tile.Row(0, within)) * tile.row_bytes;
      CopyAsync(to + j * 16 * kFewRowsStageBytes, there ? from + further : tile.weight, there);
    }
  }

  // This thread's rows of the tokens, 16 apart; null where there is no token.
  template <int kN>
  using TokenRows = const uint8_t * [(kN + 15) / 16];

  template <int kN>
  __device__ __forceinline__ void LoadTokens(const TokenRows<kN>& rows, int stage, int step) const {
    const int vector = threadIdx.x % kFewRowsVectors, within = threadIdx.x / kFewRowsVectors;
    if (within >= kN) return;
    const int64_t at = begin + step * kFewRowsStageBytes + vector * 16;
    const uint32_t to = shared + stage * kBytes + kWeightBytes + VectorAt(within, vector);
#pragma unroll
    for (int j = 0; j < (kN + 15) / 16; ++j) {
      const bool there = rows[j] != nullptr && at < end;
      CopyAsync(to + j * 16 * kFewRowsStageBytes, there ? rows[j] + at : tile.weight, there);
    }
  }

  // The stages that can be on their way before the tokens are known.
  __device__ __forceinline__ void StartWeight() const {
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      if (begin + s * kFewRowsStageBytes < end) LoadWeight(s, s);
    }
  }

  // After StartWeight; row_of(t) is where token t's row begins, or null. Ends with every thread past its
  // reads of `shared`.
  template <int kN, typename RowOf>
  __device__ __forceinline__ void Run(const RowOf& row_of, float (&low)[kN / 2],
                                      float (&high)[kN / 2]) const {
    TokenRows<kN> rows;
#pragma unroll
    for (int j = 0; j < (kN + 15) / 16; ++j) rows[j] = row_of(j * 16 + threadIdx.x / kFewRowsVectors);
#pragma unroll
    for (int s = 0; s < kStages - 1; ++s) {
      if (begin + s * kFewRowsStageBytes < end) LoadTokens<kN>(rows, s, s);
      CommitCopies();
    }
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) low[i] = high[i] = 0;
    const int steps = static_cast<int>((end - begin + kFewRowsStageBytes - 1) / kFewRowsStageBytes);
    int stage = 0, next = kStages - 1;
    for (int i = 0; i < steps; ++i) {
      WaitCopies<kStages - 2>();
      PublishCopies();
      WaitMultiply();  // the last stage is free for copies then
      __syncthreads();
      const uint32_t weights = shared + stage * kBytes, tokens = weights + kWeightBytes;
      BeginMultiply();
#pragma unroll
      for (int part = 0; part < kFewRowsStageBytes / 32; ++part) {
        const uint64_t by = Swizzled(tokens + part * 32);
        TensorCores<E, kN>::MultiplyAdd(low, Swizzled(weights + part * 32), by);
        TensorCores<E, kN>::MultiplyAdd(
            high, Swizzled(weights + kFewRowsHalf * kFewRowsStageBytes + part * 32), by);
      }
      CommitMultiply();
      if (i + kStages - 1 < steps) {
        LoadWeight(next, i + kStages - 1);
        LoadTokens<kN>(rows, next, i + kStages - 1);
      }
      CommitCopies();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
    WaitMultiply();
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) asm volatile("" : "+f"(low[i]), "+f"(high[i])::"memory");
    WaitCopies<0>();
    __syncthreads();
  }
};

// Calls f.operator()<kN>() with the tensor cores' least size that holds so many tokens.
template <int kMostTokens, typename F>
__device__ __forceinline__ void WithTokens(int tokens, F f) {
  if (tokens <= 8) {
    f.template operator()<8>();
  } else if (tokens <= 16) {
    f.template operator()<16>();
  } else if (kMostTokens <= 32 || tokens <= 32) {
    f.template operator()<32>();
  } else if constexpr (kMostTokens > 32) {
    f.template operator()<64>();
  }
}

}  // namespace augur
