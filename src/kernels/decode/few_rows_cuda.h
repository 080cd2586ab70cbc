// The product of a few rows with many: a tile of 128 rows of a weight, which are read from memory once, times
// the rows of some tokens, on Hopper's tensor cores. What it takes is the memory's bandwidth, so a block
// keeps several stages of the weight on their way. The weight's rows are the tensor cores' M, the tokens
// their N: a token's result is the same whatever tokens are in its batch. For .cu files only.
#pragma once

#include "kernels/decode/tensor_cores_cuda.h"

namespace augur {

inline constexpr int kFewRowsThreads = 128;                // one warpgroup
inline constexpr int kFewRowsTile = 128;                   // rows of the weight, in two halves
inline constexpr int kFewRowsStageBytes = kSwizzledBytes;  // of a row
inline constexpr int kFewRowsVectors = kFewRowsStageBytes / 16;
inline constexpr int kFewRowsHalf = kFewRowsTile / 2;

#ifdef AUGUR_HOPPER
#define AUGUR_ASM(...) asm volatile(__VA_ARGS__)
#else
#define AUGUR_ASM(...)
#endif

// What copies wrote is seen by the tensor cores after this and a barrier.
__device__ __forceinline__ void PublishCopies() {
  AUGUR_ASM("fence.proxy.async.shared::cta;\n" :: : "memory");
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
