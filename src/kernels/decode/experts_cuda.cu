#include <algorithm>

#include "kernels/cuda_check.h"
#include "kernels/cuda_rows.h"
#include "kernels/decode/experts.h"
#include "kernels/decode/few_rows_cuda.h"
#include "kernels/gpu_generation.h"
#include "kernels/layer/swiglu_cuda.h"

namespace augur {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kRouteTokens = 32;  // of a block, a warp each
constexpr int kPerLane = kMostExperts / 32;
constexpr int kStages = 3;  // with which three blocks share a multiprocessor
constexpr unsigned kAll = 0xffffffffu;

// Probabilities are not negative, so that their bits are in their order; 0 is none.
__device__ __forceinline__ uint32_t OrderOf(float probability) { return __float_as_uint(probability) + 1; }

// One token's choice by a warp, whose lane l holds the probabilities of experts l, l + 32, ... A place is
// noted for its expert at places[expert * kRouteTokens].
template <int kLogits>
__device__ void ChooseExperts(const Bf16* logits, int experts, int per_token, bool normalise, int32_t* chosen,
                              Bf16* weights, uint8_t* places, uint8_t* record) {
  const int lane = threadIdx.x % 32;
  float p[kLogits];
  float largest = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kLogits; ++i) {
    const int e = i * 32 + lane;
    p[i] = e < experts ? static_cast<float>(logits[e]) : -INFINITY;
    largest = fmaxf(largest, p[i]);
  }
  largest = WarpMax(largest);
#pragma unroll
  for (int i = 0; i < kLogits; ++i) {
    p[i] = i * 32 + lane < experts ? expf(p[i] - largest) : 0.0f;
    sum += p[i];
  }
  sum = WarpSum(sum);
  uint32_t order[kLogits];
#pragma unroll
  for (int i = 0; i < kLogits; ++i) order[i] = i * 32 + lane < experts ? OrderOf(p[i] / sum) : 0;
  float mine = 0, total = 0;  // lane k keeps the k-th choice
  int my_expert = 0;
  for (int k = 0; k < per_token; ++k) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kLogits; ++i) best = max(best, order[i]);
    best = __reduce_max_sync(kAll, best);
    uint32_t expert = experts - 1;
#pragma unroll
    for (int i = kLogits - 1; i >= 0; --i) {
      if (order[i] == best) expert = min(expert, static_cast<uint32_t>(i * 32 + lane));
    }
    expert = __reduce_min_sync(kAll, expert);
#pragma unroll
    for (int i = 0; i < kLogits; ++i) {
      if (i * 32 + lane == expert) order[i] = 0;
    }
    const float probability = __uint_as_float(best - 1);
    total += probability;
    if (lane == k) {
      mine = probability;
      my_expert = static_cast<int>(expert);
    }
  }
  if (lane >= per_token) return;
  chosen[lane] = my_expert;
  if (record != nullptr) record[lane] = static_cast<uint8_t>(my_expert);
  weights[lane] = static_cast<Bf16>(normalise ? mine / total : mine);
  places[my_expert * kRouteTokens] = static_cast<uint8_t>(lane + 1);
}

__global__ void __launch_bounds__(kRouteTokens * 32)
    RouteKernel(int tokens, int experts, int per_token, bool normalise, const Bf16* logits, int32_t* chosen,
                Bf16* weights, uint8_t* places, uint8_t* record, int64_t record_stride) {
  __shared__ __align__(16) uint8_t block[kMostExperts * kRouteTokens];  // [experts, kRouteTokens]
  constexpr int kVectors = kRouteTokens / 16;
  auto* vectors = reinterpret_cast<uint4*>(block);
  const int warp = threadIdx.x / 32, token = blockIdx.x * kRouteTokens + warp;
  for (int i = threadIdx.x; i < experts * kVectors; i += blockDim.x) vectors[i] = {0, 0, 0, 0};
  __syncthreads();
  if (token < tokens) {
    const Bf16* row = logits + static_cast<int64_t>(token) * experts;
    int32_t* to = chosen + token * per_token;
    Bf16* by = weights + token * per_token;
    uint8_t* noted = record == nullptr ? nullptr : record + token * record_stride;
    if (experts <= 128) {
      ChooseExperts<4>(row, experts, per_token, normalise, to, by, block + warp, noted);
    } else {
      ChooseExperts<kPerLane>(row, experts, per_token, normalise, to, by, block + warp, noted);
    }
  }
  __syncthreads();
  const int stride = gridDim.x * kRouteTokens;
  for (int i = threadIdx.x; i < experts * kVectors; i += blockDim.x) {
    uint8_t* to = places + i / kVectors * stride + blockIdx.x * kRouteTokens + i % kVectors * 16;
    *reinterpret_cast<uint4*>(to) = vectors[i];
  }
}

struct ProductArguments {
  const uint8_t* places;
  int tokens, places_stride, experts, per_token;
  const uint8_t *x, *weights;
  const float *x_scale, *weight_scale;
  Bf16* y;
  int in_bytes, out, width;  // width: of y
  bool by_token;

  __device__ __forceinline__ int RowOf(int choice) const { return by_token ? choice / per_token : choice; }
};

constexpr int kPlacesPerLane = kMostExpertTokens / 32;

// What fell on an expert, for 16 tokens of each lane.
union Places {
  uint4 vector;
  uint8_t place[kPlacesPerLane];
};
static_assert(sizeof(Places) == sizeof(uint4));

__device__ __forceinline__ int ListChoices(const ProductArguments& a, const Places& mine, int32_t* list) {
  const int lane = threadIdx.x % 32;
  int count = 0;
#pragma unroll
  for (int i = 0; i < kPlacesPerLane; ++i) count += mine.place[i] != 0;
  int end = count;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_up_sync(kAll, end, offset);
    if (lane >= offset) end += before;
  }
  if (threadIdx.x < 32) {
    int at = end - count;
#pragma unroll
    for (int i = 0; i < kPlacesPerLane; ++i) {
      if (mine.place[i] == 0) continue;
      list[at++] = (lane * kPlacesPerLane + i) * a.per_token + mine.place[i] - 1;
    }
  }
  return __shfl_sync(kAll, end, 31);
}

// The sums of `tokens` choices, to y through shared memory, so that rows are written in whole vectors.
template <typename E, bool kGated, int kN>
__device__ __forceinline__ void Finish(const ProductArguments& a, const WeightTile<kGated>& tile, int expert,
                                       const int32_t* list, int tokens, const float (&low)[kN / 2],
                                       const float (&high)[kN / 2], Bf16* shared) {
  constexpr int kWidth = WeightTile<kGated>::kWidth, kPitch = kWidth + 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int t = i / 4 * 8 + lane % 4 * 2 + i % 2, row = lane / 4 + i % 4 / 2 * 8;
    if (t >= tokens) continue;
    float by_low = 1, by_high = 1;
    if constexpr (sizeof(E) == 1) {
      const float x_scale = a.x_scale[a.RowOf(list[t])];
      const float* scales = a.weight_scale + static_cast<int64_t>(expert) * a.out;
      if (tile.Has(warp, row)) by_low = x_scale * scales[tile.Row(warp, row)];
      if (tile.Has(warp + 4, row)) by_high = x_scale * scales[tile.Row(warp + 4, row)];
    }
    Bf16* to = shared + t * kPitch + warp * 16 + row;
    if constexpr (kGated) {
      *to = static_cast<Bf16>(Swiglu(RoundedToBf16(low[i] * by_low), RoundedToBf16(high[i] * by_high)));
    } else {
      to[0] = static_cast<Bf16>(low[i] * by_low);
      to[kFewRowsHalf] = static_cast<Bf16>(high[i] * by_high);
    }
  }
  __syncthreads();
  constexpr int kVectors = kWidth / 8;
  for (int i = threadIdx.x; i < tokens * kVectors; i += kFewRowsThreads) {
    const int t = i / kVectors, column = i % kVectors * 8;
    if (tile.first + column >= a.width) continue;
    *reinterpret_cast<uint4*>(a.y + static_cast<int64_t>(list[t]) * a.width + tile.first + column) =
        *reinterpret_cast<const uint4*>(shared + t * kPitch + column);
  }
}

// A block: one expert and 128 rows of its weight, or 64 of gate and the same of up.
template <typename E, bool kGated, int kTokens>
__global__ void __launch_bounds__(kFewRowsThreads) ProductKernel(ProductArguments a) {
  using Pipeline = FewRows<E, kGated, kTokens, kStages>;
  extern __shared__ __align__(1024) uint8_t shared[];
  auto* list = reinterpret_cast<int32_t*>(shared + Pipeline::kShared);  // [kMostExpertTokens]
  const int expert = blockIdx.y, lane = threadIdx.x % 32;
  Places mine{{0, 0, 0, 0}};
  if (lane * kPlacesPerLane < a.places_stride) {
    mine.vector =
        *reinterpret_cast<const uint4*>(a.places + expert * a.places_stride + lane * kPlacesPerLane);
  }
  const bool some = (mine.vector.x | mine.vector.y | mine.vector.z | mine.vector.w) != 0;
  if (__ballot_sync(kAll, some) == 0) return;

  const WeightTile<kGated> tile{a.weights + static_cast<int64_t>(expert) * a.out * a.in_bytes, a.in_bytes,
                                static_cast<int>(blockIdx.x) * WeightTile<kGated>::kWidth, a.width};
  const Pipeline pipeline{static_cast<uint32_t>(__cvta_generic_to_shared(shared)), tile, 0, a.in_bytes};
  pipeline.StartWeight();
  const int count = ListChoices(a, mine, list);
  __syncthreads();
  for (int begin = 0; begin < count; begin += kTokens) {
    if (begin > 0) pipeline.StartWeight();
    const int tokens = min(kTokens, count - begin);
    const auto row_of = [&](int t) -> const uint8_t* {
      return t < tokens ? a.x + static_cast<int64_t>(a.RowOf(list[begin + t])) * a.in_bytes : nullptr;
    };
    WithTokens<kTokens>(tokens, [&]<int kN>() {
      float low[kN / 2], high[kN / 2];
      pipeline.template Run<kN>(row_of, low, high);
      Finish<E, kGated, kN>(a, tile, expert, list + begin, tokens, low, high,
                            reinterpret_cast<Bf16*>(shared));
    });
    __syncthreads();
  }
}

template <typename E, bool kGated, int kTokens>
void LaunchProduct(const ProductArguments& a, cudaStream_t stream) {
  constexpr int kWidth = WeightTile<kGated>::kWidth;
  constexpr int kPipeline = FewRows<E, kGated, kTokens, kStages>::kShared;
  static_assert(kTokens * (kWidth + 8) * sizeof(Bf16) <= kPipeline);
  constexpr int kShared = kPipeline + kMostExpertTokens * sizeof(int32_t);
  const auto kernel = ProductKernel<E, kGated, kTokens>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
            "experts on the GPU");
  const dim3 grid(static_cast<unsigned>((a.width + kWidth - 1) / kWidth), static_cast<unsigned>(a.experts));
  kernel<<<grid, kFewRowsThreads, kShared, stream>>>(a);
}

// Room for four times the mean of an expert's tokens, so that few experts read their weights twice.
template <typename E, bool kGated>
void LaunchProduct(const ProductArguments& a, cudaStream_t stream) {
  if (static_cast<int64_t>(a.tokens) * a.per_token <= 8 * a.experts) {
    LaunchProduct<E, kGated, 32>(a, stream);
  } else {
    LaunchProduct<E, kGated, 64>(a, stream);
  }
}

// A block per token, eight columns a thread.
__global__ void MixKernel(int per_token, int width, const Bf16* weights, const Bf16* y, Bf16* out) {
  const int64_t token = blockIdx.x;
  for (int column = threadIdx.x * 8; column < width; column += blockDim.x * 8) {
    float sum[8] = {};
    for (int k = 0; k < per_token; ++k) {
      const int64_t choice = token * per_token + k;
      const auto weight = static_cast<float>(weights[choice]);
      float part[8];
      LoadVector<8>(y + choice * width + column, part);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += RoundedToBf16(part[i] * weight);
    }
    StoreVector<8>(sum, out + token * width + column);
  }
}

}  // namespace

bool HasExpertKernelsCuda() { return HasHopperKernels(); }

void RouteTokensCuda(const BFloat16* logits, bool normalise, const ExpertRoutes& routes, void* stream) {
  if (routes.tokens == 0) return;
  if (routes.tokens > kMostExpertTokens || routes.experts > kMostExperts ||
      routes.per_token > kMostExpertsPerToken || routes.per_token > routes.experts) {
    ThrowCudaError("routing on the GPU", "more tokens or experts than the kernel takes");
  }
  const auto blocks = static_cast<unsigned>(ExpertPlacesStride(routes.tokens) / kRouteTokens);
  RouteKernel<<<blocks, kRouteTokens * 32, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<int>(routes.tokens), routes.experts, routes.per_token, normalise, OnDevice(logits),
      routes.chosen, OnDevice(routes.weights), routes.places, routes.record, routes.record_stride);
  CheckCuda(cudaGetLastError(), "routing on the GPU");
}

void ExpertProductCuda(const ExpertRoutes& routes, const ExpertProduct& product, void* stream) {
  if (routes.tokens == 0) return;
  const bool fp8 = product.x_scale != nullptr;
  const ProductArguments a{routes.places,
                           static_cast<int>(routes.tokens),
                           static_cast<int>(ExpertPlacesStride(routes.tokens)),
                           routes.experts,
                           routes.per_token,
                           static_cast<const uint8_t*>(product.x),
                           static_cast<const uint8_t*>(product.weights),
                           product.x_scale,
                           product.weight_scale,
                           OnDevice(product.y),
                           product.in * (fp8 ? 1 : 2),
                           product.out,
                           product.gated ? product.out / 2 : product.out,
                           product.by_token};
  if (a.in_bytes % 16 != 0 || a.width % 8 != 0) {
    ThrowCudaError("experts on the GPU", "widths that are not whole vectors");
  }
  const auto queue = static_cast<cudaStream_t>(stream);
  if (fp8) {
    product.gated ? LaunchProduct<uint8_t, true>(a, queue) : LaunchProduct<uint8_t, false>(a, queue);
  } else {
    product.gated ? LaunchProduct<Bf16, true>(a, queue) : LaunchProduct<Bf16, false>(a, queue);
  }
  CheckCuda(cudaGetLastError(), "experts on the GPU");
}

void MixExpertsCuda(const ExpertRoutes& routes, int64_t width, const BFloat16* y, BFloat16* out,
                    void* stream) {
  if (routes.tokens == 0) return;
  const auto threads = static_cast<unsigned>(std::min<int64_t>(512, (width / 8 + 31) / 32 * 32));
  MixKernel<<<static_cast<unsigned>(routes.tokens), threads, 0, static_cast<cudaStream_t>(stream)>>>(
      routes.per_token, static_cast<int>(width), OnDevice(routes.weights), OnDevice(y), OnDevice(out));
  CheckCuda(cudaGetLastError(), "experts on the GPU");
}

}  // namespace augur
