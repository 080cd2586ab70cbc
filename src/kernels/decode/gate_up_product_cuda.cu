#include <algorithm>

#include "kernels/cuda_check.h"
#include "kernels/cuda_overlap.h"
#include "kernels/decode/gate_up_product.h"
#include "kernels/decode/tile_maps_cuda.h"
#include "kernels/layer/swiglu_cuda.h"

namespace augur {
namespace {

using Bf16 = __nv_bfloat16;

constexpr const char* kWhat = "the products of gate and up on the GPU";
constexpr int kThreads = 128;

// A block's rows of the weight, half of them gate's, and how many tiles are on their way: one block to a
// multiprocessor, or two.
template <int kRows>
struct Tiles {
  static constexpr int kWidth = kRows / 2;
  static constexpr int kWeightBytes = kRows * kStepBytes, kBytes = kWeightBytes + kTokenBytes;
  static constexpr int kStages = kRows == 160 ? 7 : 5;
  // Of weights, before the kernel in front is done: more would keep that one from the memory.
  static constexpr int kEarlyStages = 3;
  static constexpr int kShared = kStages * (kBytes + 16);  // and two barriers each
};

struct Arguments {
  int tokens, width, steps;
  Bf16* y;
};

// As from a product in memory.
__device__ __forceinline__ float Gated(float gate, float up) {
  return Swiglu(RoundedToBf16(gate), RoundedToBf16(up));
}

__device__ __forceinline__ uint32_t GatedPair(const float* gate, const float* up) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(Gated(gate[0], up[0]), Gated(gate[1], up[1]));
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// This thread's sums are those of tokens `token` and + 8 in columns 8 n + lane % 4 * 2 and the next, first of
// gate and then of up. Neighbours exchange, so that each writes four columns.
template <int kRows>
__device__ __forceinline__ void Finish(const Arguments& a, const float (&sums)[kRows / 2], int first,
                                       int token) {
  const int quad = threadIdx.x % 4;
  const bool odd = quad % 2 != 0;
#pragma unroll
  for (int n = 0; n < kRows / 16; n += 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float *gate = sums + 4 * n + 2 * half, *up = gate + kRows / 4;
      const uint32_t now = GatedPair(gate, up), next = GatedPair(gate + 4, up + 4);
      const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? now : next, 1);
      const int column = first + 8 * (odd ? n + 1 : n) + quad / 2 * 4, row = token + 8 * half;
      if (row >= a.tokens || column >= a.width) continue;
      *reinterpret_cast<uint2*>(a.y + static_cast<int64_t>(row) * a.width + column) =
          odd ? uint2{other, next} : uint2{now, other};
    }
  }
}

// The first thread copies tiles, all multiply them.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    ProductKernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,
                  const Arguments a) {
  using T = Tiles<kRows>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t full = base + T::kStages * T::kBytes, empty = full + 8 * T::kStages;
  const int first = static_cast<int>(blockIdx.x) * T::kWidth;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, ahead = min(T::kStages, a.steps);
  const auto copy_weight = [&](int stage, int step) {
    const uint32_t to = base + stage * T::kBytes, barrier = full + 8 * stage;
    ArriveExpecting(barrier, T::kBytes);
    CopyTileOnce(to, &weight, step * kStep, first, barrier);
    CopyTileOnce(to + T::kWeightBytes / 2, &weight, step * kStep, a.width + first, barrier);
  };
  const auto copy_tokens = [&](int stage, int step) {
    CopyTile(base + stage * T::kBytes + T::kWeightBytes, &x, step * kStep, 0, full + 8 * stage);
  };

  LetNextStart();
  if (threadIdx.x == 0) {
    for (int s = 0; s < T::kStages; ++s) {
      InitBarrier(full + 8 * s, 1);
      InitBarrier(empty + 8 * s, kThreads / 32);
    }
    PublishBarriers();
    for (int i = 0; i < min(T::kEarlyStages, ahead); ++i) copy_weight(i, i);
  }
  WaitForEarlier();
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 0; i < ahead; ++i) {
      if (i >= T::kEarlyStages) copy_weight(i, i);
      copy_tokens(i, i);
    }
  }
  __syncwarp();

  float sums[kRows / 2];
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) sums[i] = 0;
  int stage = 0, before = 0;
  uint32_t parity = 0, parity_before = 0;
  for (int i = 0; i < a.steps; ++i) {
    WaitBarrier(full + 8 * stage, parity);
    const uint32_t rows = base + stage * T::kBytes, tokens = rows + T::kWeightBytes;
    BeginMultiply();
#pragma unroll
    for (int k = 0; k < kStepBytes; k += 32) {
      TensorCores<Bf16, kRows>::MultiplyAdd(sums, Swizzled(tokens + k), Swizzled(rows + k));
    }
    CommitMultiply();
    WaitMultiply<1>();
    const int next = i - 1 + T::kStages;  // it takes the place of the step before this one
    if (i > 0 && next < a.steps) {
      if (lane == 0) Arrive(empty + 8 * before);
      if (warp == 0) {
        WaitBarrier(empty + 8 * before, parity_before);
        if (lane == 0) {
          copy_weight(before, next);
          copy_tokens(before, next);
        }
        __syncwarp();
      }
    }
    before = stage;
    parity_before = parity;
    if (++stage == T::kStages) stage = 0, parity ^= 1;
  }
  WaitMultiply();
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");
  Finish<kRows>(a, sums, first, warp * 16 + lane / 4);
}

template <int kRows>
void Launch(const GateUpProduct& p, cudaStream_t stream) {
  using T = Tiles<kRows>;
  const auto kernel = ProductKernel<kRows>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kShared), kWhat);
  const Arguments a{static_cast<int>(p.tokens), static_cast<int>(p.width),
                    static_cast<int>((p.in + kStep - 1) / kStep), OnDevice(p.y)};
  LaunchEarly(kernel, static_cast<unsigned>((p.width + T::kWidth - 1) / T::kWidth), kThreads, T::kShared,
              stream, MakeTileMap(p.x, p.tokens, p.in, kTileTokens, kWhat),
              MakeTileMap(p.weight, 2 * p.width, p.in, T::kWidth, kWhat), a);
  CheckCuda(cudaGetLastError(), kWhat);
}

}  // namespace

bool HasGateUpProductCuda(const GateUpProduct& p) {
  return TakesTiles(p.tokens, p.in, p.width, p.x, p.weight, p.y);
}

void GateUpProductCuda(const GateUpProduct& p, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  // One large tile for each multiprocessor, where that leaves few of them idle; otherwise several small ones.
  const int64_t tiles = (p.width + Tiles<160>::kWidth - 1) / Tiles<160>::kWidth;
  const int64_t places = Multiprocessors(kWhat);
  if (tiles <= places && tiles * 4 >= places * 3) {
    Launch<160>(p, queue);
  } else {
    Launch<96>(p, queue);
  }
}

}  // namespace augur
