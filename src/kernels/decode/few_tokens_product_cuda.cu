#include <algorithm>

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
// A cluster takes so many rows of the weight, each of its blocks a part of their width. A block to a
// multiprocessor, in one round: 108 blocks for 2560 rows. Two rounds, or eight blocks, are slower than
// cuBLAS.
constexpr int kRows = 96, kSplits = 4;
// Tiles on their way. Tokens cannot be copied before the kernel in front is done, weights can.
constexpr int kWeightStages = 13, kTokenStages = 7;
constexpr int kWeightBytes = kRows * kStepBytes;
constexpr int kTileBytes = kWeightStages * kWeightBytes + kTokenStages * kTokenBytes;
constexpr int kShared = kTileBytes + 16 * kWeightStages;  // and two barriers for each step on its way
// Of the sums' rows, which follow over the tiles: neither writes nor reads share banks.
constexpr int kStride = kRows + 8;
static_assert(kTileTokens * kStride * sizeof(float) <= kTileBytes && kShared <= 227 * 1024);

// Where things are in a block's shared memory.
struct Block {
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

__device__ __forceinline__ void CopyWeight(const Block& block, const CUtensorMap* weight, const Part& part,
                                           int i) {
  ArriveExpecting(block.Full(i), kWeightBytes + kTokenBytes);
  CopyTileOnce(block.Weight(i), weight, (part.begin + i) * kStep, part.first, block.Full(i));
}

__device__ __forceinline__ void CopyTokens(const Block& block, const CUtensorMap* x, const Part& part,
                                           int i) {
  CopyTile(block.Tokens(i), x, (part.begin + i) * kStep, 0, block.Full(i));
}

// One thread prepares the barriers and what can be copied before the kernel in front is done.
__device__ __forceinline__ void Begin(const Block& block, const CUtensorMap* weight, const Part& part) {
  for (int i = 0; i < kWeightStages; ++i) {
    InitBarrier(block.Full(i), 1);
    InitBarrier(block.Empty(i), kConsumers / 32);
  }
  PublishBarriers();
  for (int i = 0; i < min(kWeightStages, part.steps); ++i) CopyWeight(block, weight, part, i);
}

// One thread copies the rest. A step that was multiplied leaves its places to a later one's weights and to an
// earlier one's tokens.
__device__ __forceinline__ void Copy(const Block& block, const CUtensorMap* x, const CUtensorMap* weight,
                                     const Part& part) {
  for (int i = 0; i < min(kTokenStages, part.steps); ++i) CopyTokens(block, x, part, i);
  for (int i = 0; i + kTokenStages < part.steps; ++i) {
    WaitBarrier(block.Empty(i), Block::Parity(i));
    if (i + kWeightStages < part.steps) CopyWeight(block, weight, part, i + kWeightStages);
    CopyTokens(block, x, part, i + kTokenStages);
  }
}

// A warpgroup multiplies what is copied.
__device__ __forceinline__ void Multiply(const Block& block, int steps, float (&sums)[kRows / 2]) {
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) sums[i] = 0;
  for (int i = 0; i < steps; ++i) {
    WaitBarrier(block.Full(i), Block::Parity(i));
    const uint32_t tokens = block.Tokens(i), weight = block.Weight(i);
    BeginMultiply();
#pragma unroll
    for (int k = 0; k < kStepBytes; k += 32) {
      TensorCores<__nv_bfloat16, kRows>::MultiplyAdd(sums, Swizzled(tokens + k), Swizzled(weight + k));
    }
    CommitMultiply();
    WaitMultiply<1>();
    if (i > 0 && threadIdx.x % 32 == 0) Arrive(block.Empty(i - 1));
  }
  WaitMultiply();
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// The sums over the block's tiles, [64, kStride], once no warp needs those any more.
__device__ __forceinline__ void StoreSums(const float (&sums)[kRows / 2], float* to) {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
  const int token = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < kRows / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float2*>(to + (token + 8 * half) * kStride + 8 * n + column) = {
          sums[4 * n + 2 * half], sums[4 * n + 2 * half + 1]};
    }
  }
}

// y for this block's share of the tokens: all blocks' sums, in the order of their ranks.
__device__ __forceinline__ void Finish(const Block& block, const Arguments& a, int first, int rank) {
  constexpr int kShare = kTileTokens / kSplits, kColumns = kRows / kVector;
  for (int i = threadIdx.x; i < kShare * kColumns; i += kThreads) {
    const int token = rank * kShare + i / kColumns, column = i % kColumns * kVector;
    if (token >= a.tokens || first + column >= a.out) continue;
    const uint32_t at = block.base + (token * kStride + column) * static_cast<int>(sizeof(float));
    float4 parts[kSplits][2];
#pragma unroll
    for (int r = 0; r < kSplits; ++r) {
      parts[r][0] = LoadFromBlock(at, r);
      parts[r][1] = LoadFromBlock(at + sizeof(float4), r);
    }
    float sums[kVector] = {};
#pragma unroll
    for (int r = 0; r < kSplits; ++r) {
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

__global__ void __launch_bounds__(kThreads)
    ProductKernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,
                  const Arguments a) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const Block block{static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
  const int rank = static_cast<int>(blockIdx.x) % kSplits;
  const int begin = a.steps * rank / kSplits, end = a.steps * (rank + 1) / kSplits;
  const Part part{static_cast<int>(blockIdx.x) / kSplits * kRows, begin, end - begin};
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
    float sums[kRows / 2];
    Multiply(block, part.steps, sums);
    StoreSums(sums, reinterpret_cast<float*>(shared));
  }
  SyncCluster();
  Finish(block, a, part.first, rank);
  LeaveCluster();
}

int64_t Ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Each GPU of a process asks for itself.
void AllowSharedMemory() {
  CheckCuda(cudaFuncSetAttribute(ProductKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared), kWhat);
}

// How many clusters the current GPU runs at once.
int MostClusters() {
  thread_local int known = -1, count = 0;
  int device = 0;
  CheckCuda(cudaGetDevice(&device), kWhat);
  if (device == known) return count;
  AllowSharedMemory();
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kSplits;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kSplits);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kShared;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CheckCuda(cudaOccupancyMaxActiveClusters(&count, ProductKernel, &config), kWhat);
  known = device;
  return count;
}

}  // namespace

bool HasFewTokensProductCuda(const FewTokensProduct& p) {
  return TakesTiles(p.tokens, p.in, p.out, p.x, p.weight, p.y);
}

bool PaysFewTokensProductCuda(const FewTokensProduct& p) {
  if (!HasFewTokensProductCuda(p)) return false;
  const int most = MostClusters();
  const int64_t clusters = Ceiling(p.out, kRows);
  return clusters <= most && clusters * 3 >= most * 2;
}

void FewTokensProductCuda(const FewTokensProduct& p, void* stream) {
  AllowSharedMemory();
  const Arguments a{static_cast<int>(p.tokens), static_cast<int>(p.out),
                    static_cast<int>(Ceiling(p.in, kStep)), OnDevice(p.y)};
  LaunchClustersEarly(kSplits, ProductKernel, static_cast<unsigned>(Ceiling(p.out, kRows) * kSplits),
                      kThreads, kShared, static_cast<cudaStream_t>(stream),
                      MakeTileMap(p.x, p.tokens, p.in, kTileTokens, kWhat),
                      MakeTileMap(p.weight, p.out, p.in, kRows, kWhat), a);
  CheckCuda(cudaGetLastError(), kWhat);
}

}  // namespace augur
