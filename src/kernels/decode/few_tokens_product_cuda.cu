#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/cuda_check.h"
#include "kernels/cuda_overlap.h"
#include "kernels/decode/cluster_cuda.h"
#include "kernels/decode/few_tokens_product.h"
#include "kernels/decode/tile_maps_cuda.h"

namespace augur {
namespace {

constexpr const char* kWhat = "the products of few tokens on the GPU";
constexpr int kConsumers = 128;            // threads that multiply
constexpr int kThreads = kConsumers + 32;  // and a warp that copies
constexpr int kVector = 8;                 // elements of y written at a time

// A block's shared memory: the weight's tiles, the tokens', and two barriers for each step on its way. Tokens
// cannot be copied before the kernel in front is done, weights can: they have more stages. Then the block's
// sums, over the tiles.
template <int kDivision>
struct Block {
  static constexpr int kRows = kFewTokensDivisions[kDivision].rows;
  static constexpr int kSplits = kFewTokensDivisions[kDivision].splits;
  static constexpr int kWeightStages = kFewTokensDivisions[kDivision].weight_stages;
  static constexpr int kTokenStages = kFewTokensDivisions[kDivision].token_stages;
  static constexpr int kWeightBytes = kRows * kStepBytes;
  static constexpr int kTileBytes = kWeightStages * kWeightBytes + kTokenStages * kTokenBytes;
  static constexpr int kShared = kTileBytes + 16 * kWeightStages;
  static constexpr int kStride = kRows + 8;  // of the sums' rows: neither writes nor reads share banks
  static_assert(kRows % 16 == 0 && kTileTokens % kSplits == 0);
  static_assert(kTokenStages >= 2 && kWeightStages >= kTokenStages);
  static_assert(kTileTokens * kStride * sizeof(float) <= kTileBytes && kShared <= 227 * 1024);

  __device__ uint32_t Weight(int i) const { return base + i % kWeightStages * kWeightBytes; }
  __device__ uint32_t Tokens(int i) const {
    return base + kWeightStages * kWeightBytes + i % kTokenStages * kTokenBytes;
  }
  // Step i's tiles have come; have been multiplied.
  __device__ uint32_t Full(int i) const { return base + kTileBytes + i % kWeightStages * 8; }
  __device__ uint32_t Empty(int i) const { return Full(i) + 8 * kWeightStages; }
  __device__ static uint32_t Parity(int i) { return i / kWeightStages & 1; }

  uint32_t base;
};

struct Arguments {
  int tokens, out, steps;
  __nv_bfloat16* y;
};

// What a block multiplies: rows `first` .. of the weight, steps `begin` .. of the width.
struct Part {
  int first, begin, steps;
};

template <typename B>
__device__ __forceinline__ void CopyWeight(const B& block, const CUtensorMap* weight, const Part& part,
                                           int i) {
  ArriveExpecting(block.Full(i), B::kWeightBytes + kTokenBytes);
  CopyTileOnce(block.Weight(i), weight, (part.begin + i) * kStep, part.first, block.Full(i));
}

template <typename B>
__device__ __forceinline__ void CopyTokens(const B& block, const CUtensorMap* x, const Part& part, int i) {
  CopyTile(block.Tokens(i), x, (part.begin + i) * kStep, 0, block.Full(i));
}

// One thread prepares the barriers and what can be copied before the kernel in front is done.
template <typename B>
__device__ __forceinline__ void Begin(const B& block, const CUtensorMap* weight, const Part& part) {
  for (int i = 0; i < B::kWeightStages; ++i) {
    InitBarrier(block.Full(i), 1);
    InitBarrier(block.Empty(i), kConsumers / 32);
  }
  PublishBarriers();
  for (int i = 0; i < min(B::kWeightStages, part.steps); ++i) CopyWeight(block, weight, part, i);
}

// One thread copies the rest. A step that was multiplied leaves its places to a later one's weights and to an
// earlier one's tokens.
template <typename B>
__device__ __forceinline__ void Copy(const B& block, const CUtensorMap* x, const CUtensorMap* weight,
                                     const Part& part) {
  for (int i = 0; i < min(B::kTokenStages, part.steps); ++i) CopyTokens(block, x, part, i);
  for (int i = 0; i + B::kTokenStages < part.steps; ++i) {
    WaitBarrier(block.Empty(i), B::Parity(i));
    if (i + B::kWeightStages < part.steps) CopyWeight(block, weight, part, i + B::kWeightStages);
    CopyTokens(block, x, part, i + B::kTokenStages);
  }
}

// A warpgroup multiplies what is copied.
template <typename B>
__device__ __forceinline__ void Multiply(const B& block, int steps, float (&sums)[B::kRows / 2]) {
#pragma unroll
  for (int i = 0; i < B::kRows / 2; ++i) sums[i] = 0;
  for (int i = 0; i < steps; ++i) {
    WaitBarrier(block.Full(i), B::Parity(i));
    const uint32_t tokens = block.Tokens(i), weight = block.Weight(i);
    BeginMultiply();
#pragma unroll
    for (int k = 0; k < kStepBytes; k += 32) {
      TensorCores<__nv_bfloat16, B::kRows>::MultiplyAdd(sums, Swizzled(tokens + k), Swizzled(weight + k));
    }
    CommitMultiply();
    WaitMultiply<1>();
    if (i > 0 && threadIdx.x % 32 == 0) Arrive(block.Empty(i - 1));
  }
  WaitMultiply();
#pragma unroll
  for (int i = 0; i < B::kRows / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// The sums over the block's tiles, [64, kStride], once no warp needs those any more.
template <typename B>
__device__ __forceinline__ void StoreSums(const float (&sums)[B::kRows / 2], float* to) {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
  const int token = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < B::kRows / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float2*>(to + (token + 8 * half) * B::kStride + 8 * n + column) = {
          sums[4 * n + 2 * half], sums[4 * n + 2 * half + 1]};
    }
  }
}

// y for this block's share of the tokens: all blocks' sums, in the order of their ranks.
template <typename B>
__device__ __forceinline__ void Finish(const B& block, const Arguments& a, int first, int rank) {
  constexpr int kShare = kTileTokens / B::kSplits, kColumns = B::kRows / kVector;
  for (int i = threadIdx.x; i < kShare * kColumns; i += kThreads) {
    const int token = rank * kShare + i / kColumns, column = i % kColumns * kVector;
    if (token >= a.tokens || first + column >= a.out) continue;
    const uint32_t at = block.base + (token * B::kStride + column) * static_cast<int>(sizeof(float));
    float4 parts[B::kSplits][2];
#pragma unroll
    for (int r = 0; r < B::kSplits; ++r) {
      parts[r][0] = LoadFromBlock(at, r);
      parts[r][1] = LoadFromBlock(at + sizeof(float4), r);
    }
    float sums[kVector] = {};
#pragma unroll
    for (int r = 0; r < B::kSplits; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4& part = parts[r][half];
        float* const to = sums + 4 * half;
        to[0] += part.x, to[1] += part.y, to[2] += part.z, to[3] += part.w;
      }
    }
    StoreVector<kVector>(sums, a.y + static_cast<int64_t>(token) * a.out + first + column);
  }
}

template <int kDivision>
__global__ void __launch_bounds__(kThreads)
    ProductKernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,
                  const Arguments a) {
  using B = Block<kDivision>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const B block{static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
  const int rank = static_cast<int>(blockIdx.x) % B::kSplits;
  const int begin = a.steps * rank / B::kSplits, end = a.steps * (rank + 1) / B::kSplits;
  const Part part{static_cast<int>(blockIdx.x) / B::kSplits * B::kRows, begin, end - begin};
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);

  LetNextStart();
  if (threadIdx.x == kConsumers) {
    Begin(block, &weight, part);
    PrefetchMap(&x);
  }
  __syncthreads();
  WaitForEarlier();
  if (warp == kConsumers / 32) {
    if (threadIdx.x == kConsumers) Copy(block, &x, &weight, part);
  } else {
    float sums[B::kRows / 2];
    Multiply(block, part.steps, sums);
    StoreSums<B>(sums, reinterpret_cast<float*>(shared));
  }
  SyncCluster();
  Finish(block, a, part.first, rank);
  LeaveCluster();
}

int64_t Ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <int kDivision>
void Launch(const FewTokensProduct& p, cudaStream_t stream) {
  using B = Block<kDivision>;
  const auto kernel = ProductKernel<kDivision>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, B::kShared);
  CheckCuda(allowed, kWhat);
  const Arguments a{static_cast<int>(p.tokens), static_cast<int>(p.out),
                    static_cast<int>(Ceiling(p.in, kStep)), OnDevice(p.y)};
  LaunchClustersEarly(B::kSplits, kernel, static_cast<unsigned>(Ceiling(p.out, B::kRows) * B::kSplits),
                      kThreads, B::kShared, stream, MakeTileMap(p.x, p.tokens, p.in, kTileTokens, kWhat),
                      MakeTileMap(p.weight, p.out, p.in, B::kRows, kWhat), a);
  CheckCuda(cudaGetLastError(), kWhat);
}

// That with which the busiest multiprocessor copies the least.
int ChooseDivision(const FewTokensProduct& p) {
  const int64_t places = Multiprocessors(kWhat), steps = Ceiling(p.in, kStep);
  const auto copied = [&](const FewTokensDivision& d) {
    const int64_t rounds = Ceiling(Ceiling(p.out, d.rows), std::max<int64_t>(places / d.splits, 1));
    return rounds * Ceiling(steps, d.splits) * (d.rows + kTileTokens);
  };
  return static_cast<int>(std::ranges::min_element(kFewTokensDivisions, {}, copied) -
                          std::begin(kFewTokensDivisions));
}

}  // namespace

bool HasFewTokensProductCuda(const FewTokensProduct& p) {
  return TakesTiles(p.tokens, p.in, p.out, p.x, p.weight, p.y);
}

void FewTokensProductCuda(const FewTokensProduct& p, void* stream, int division) {
  const int chosen = division < 0 ? ChooseDivision(p) : division;
  [&]<int... kDivisions>(std::integer_sequence<int, kDivisions...>) {
    ((chosen == kDivisions ? Launch<kDivisions>(p, static_cast<cudaStream_t>(stream)) : void()), ...);
  }
  (std::make_integer_sequence<int, static_cast<int>(std::size(kFewTokensDivisions))>());
}

}  // namespace augur
