#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda_check.h"
#include "kernels/cuda_rows.h"
#include "kernels/decode/sample_keys_cuda.h"
#include "kernels/simd/exp2.h"

namespace augur {
namespace {

constexpr int kSweepThreads = 32 * kSampleWarps;
constexpr int kPerLane = kSamplePart / 32;  // tokens of a part that one lane takes
constexpr int kFinishThreads = 256;
constexpr int kFinishWarps = kFinishThreads / 32;
constexpr int kNeighbours = kSamplePart / kFinishThreads;  // tokens that one thread takes to draw in a part

// Whether the tokens that truncations leave are among the most likely that the sweep keeps.
__host__ __device__ bool DrawsFromBest(const SampleSettings& settings) {
  return settings.top_k > 0 && settings.top_k <= kMostKept;
}

// One lane's share of a part, in registers: kVector neighbours at a time, the lanes side by side.
template <typename E>
struct LaneShare {
  static constexpr int kVector = 16 / sizeof(E);
  float z[kPerLane];  // scaled logits, -inf behind the vocabulary
  int first;          // token of z[0]

  __device__ __forceinline__ LaneShare(const E* row, int vocab_size, float scale, int part)
      : first(part * kSamplePart + static_cast<int>(threadIdx.x % 32) * kVector) {
    const bool whole = (part + 1) * kSamplePart <= vocab_size && reinterpret_cast<uintptr_t>(row) % 16 == 0;
    if (whole) {
#pragma unroll
      for (int i = 0; i < kPerLane; i += kVector) LoadVector<kVector>(row + TokenAt(i), z + i);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) z[i] *= scale;
    } else {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        z[i] = TokenAt(i) < vocab_size ? static_cast<float>(row[TokenAt(i)]) * scale : -INFINITY;
      }
    }
  }

  __device__ int TokenAt(int i) const { return first + i / kVector * 32 * kVector + i % kVector; }

  __device__ float Largest() const {
    float most = z[0];
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) most = fmaxf(most, z[i]);
    return most;
  }

  // Of exp(z - most). Not a number in a logit, or infinity, makes it NaN.
  __device__ float SumBelow(float most) const {
    constexpr int kChains = 4;
    float sums[kChains] = {};
    if (most == -INFINITY) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) sums[0] = z[i] != z[i] ? NAN : sums[0];
    } else {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        sums[i % kChains] += Exp2((z[i] - most) * static_cast<float>(kLog2E));
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  // The most likely token, given its scaled logit.
  __device__ SampleKey Best(float most) const {
    int at = 0;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i) at = z[i] == most ? i : at;
    return MakeSampleKey(most, TokenAt(at));
  }
};

// The warp's 32 keys in falling order by lane.
__device__ __forceinline__ SampleKey SortWarp(SampleKey key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int size = 2; size <= 32; size *= 2) {
#pragma unroll
    for (int step = size / 2; step > 0; step /= 2) {
      const SampleKey other = __shfl_xor_sync(0xffffffffu, key, step);
      const bool falling = (lane & size) == 0 || size == 32, lower = (lane & step) == 0;
      key = falling == lower ? max(key, other) : min(key, other);
    }
  }
  return key;
}

// How many of a warp's 32 falling `keys` are greater than `key`.
__device__ __forceinline__ int CountGreaterOfWarp(const SampleKey* keys, SampleKey key) {
  int count = 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) count += keys[count + step - 1] > key ? step : 0;
  return count + (keys[count] > key ? 1 : 0);
}

// How many of the falling `keys` are greater than `key`.
__device__ __forceinline__ int CountGreater(const SampleKey* keys, int size, SampleKey key) {
  int low = 0, high = size;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (keys[middle] > key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

struct SweepShared {
  SampleKey sorted[kSampleWarps][32];
  SampleKey threshold;
  int found;
};

// The `keep` most likely of the block's parts, exactly. At least `keep` tokens are as likely as the keep-th
// largest of the threads' own best ones, and only the keep threads that hold one can hold more of them: few
// candidates are left to be sorted. `candidates` [keep * kPerLane] is shared memory.
template <typename E>
__device__ void KeepBest(const LaneShare<E>& share, SampleKey mine, int keep, SampleKey* best,
                         SampleKey* candidates, SweepShared* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const SampleKey sorted = SortWarp(mine);
  shared->sorted[warp][lane] = sorted;
  if (threadIdx.x == 0) {
    shared->threshold = 0;
    shared->found = 0;
  }
  __syncthreads();
  if (sorted != 0 && lane < keep) {
    int rank = lane;
#pragma unroll
    for (int w = 0; w < kSampleWarps; ++w) {
      rank += w == warp ? 0 : CountGreaterOfWarp(shared->sorted[w], sorted);
    }
    if (rank == keep - 1) shared->threshold = sorted;
  }
  __syncthreads();
  const SampleKey threshold = shared->threshold;
  if (mine != 0 && mine >= threshold) {
    const float least = threshold != 0 ? ValueOfKey(threshold) : -INFINITY;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (!(share.z[i] >= least)) continue;
      const SampleKey key = MakeSampleKey(share.z[i], share.TokenAt(i));
      if (key != 0 && key >= threshold) candidates[atomicAdd(&shared->found, 1)] = key;
    }
  }
  __syncthreads();
  const int found = shared->found;
  for (int i = threadIdx.x; i < found; i += kSweepThreads) {
    const SampleKey key = candidates[i];
    int rank = 0;
    for (int k = 0; k < found; ++k) rank += candidates[k] > key;
    if (rank < keep) best[rank] = key;
  }
  for (int i = found + threadIdx.x; i < keep; i += kSweepThreads) best[i] = 0;
}

// A few neighbouring parts of one row, one per warp, read once.
template <typename E>
__global__ void __launch_bounds__(kSweepThreads, 3)
    SweepKernel(const E* logits, const SampleDraw* draws, int64_t vocab_size, int64_t stride, float scale,
                SampleWorkspace workspace) {
  extern __shared__ SampleKey candidates[];
  __shared__ SweepShared shared;
  const int64_t draw = blockIdx.x / workspace.lists;  // not a dimension of its own: others end at 65,535
  const int list = static_cast<int>(blockIdx.x) % workspace.lists;
  const int part = list * kSampleWarps + static_cast<int>(threadIdx.x) / 32;
  const LaneShare<E> share(logits + draws[draw].row * stride, static_cast<int>(vocab_size), scale, part);
  const float mine = share.Largest(), most = WarpMax(mine);
  const float sum = WarpSum(share.SumBelow(most));
  if (threadIdx.x % 32 == 0 && part < workspace.parts) {
    workspace.sums[draw * workspace.parts + part] = {sum == sum ? most : NAN, sum};
  }
  KeepBest(share, share.Best(mine), workspace.keep,
           workspace.best + (draw * workspace.lists + list) * workspace.keep, candidates, &shared);
}

struct FinishShared {
  SampleRow row;
  int part;       // that the token falls into
  double target;  // weight before it within the part
  double warps[kFinishWarps];
  int chosen, last;  // threads: the first whose share reaches the target; the last that has a share
  SampleKey drawn;
  SampleKey best[kMostKept];
  double weights[kMostKept];  // of the best
  SampleKey floor;
  SampleKey lists[kMostParts / kSampleWarps * kMostKept];
};

// The most likely of the row from its lists: those not below the last of any full list are ranked.
__device__ void MergeBest(const SampleKey* lists, int count, int keep, FinishShared* shared) {
  if (threadIdx.x == 0) shared->floor = 0;
  for (int i = threadIdx.x; i < keep; i += kFinishThreads) shared->best[i] = 0;
  for (int i = threadIdx.x; i < count * keep; i += kFinishThreads) shared->lists[i] = lists[i];
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kFinishThreads) {
    atomicMax(&shared->floor, shared->lists[i * keep + keep - 1]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count * keep; i += kFinishThreads) {
    const SampleKey key = shared->lists[i];
    if (key == 0 || key < shared->floor) continue;
    int rank = i % keep;
    for (int s = 0; s < count && rank < keep; ++s) {
      if (s != i / keep) rank += CountGreater(shared->lists + s * keep, keep, key);
    }
    if (rank < keep) shared->best[rank] = key;
  }
  __syncthreads();
}

// The part that the draw's share of the whole falls into; by the first warp. Where rounding lets the parts
// sum to less than the whole, it is the last.
__device__ void ChoosePart(int parts, double uniform, FinishShared* shared) {
  const int lane = threadIdx.x;
  const double target = uniform * shared->row.sum;
  double before = 0;  // weight of the parts before these 32
  for (int first = 0; first < parts; first += 32) {
    const double weight = shared->row.weights[first + lane];
    double through = weight;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const double left = __shfl_up_sync(0xffffffffu, through, offset);
      if (lane >= offset) through += left;
    }
    const unsigned some = __ballot_sync(0xffffffffu, weight > 0);
    const unsigned reached = __ballot_sync(0xffffffffu, weight > 0 && before + through > target);
    const int chosen = reached != 0 ? __ffs(reached) - 1 : 31 - __clz(some);
    if (lane == chosen) {
      shared->part = first + lane;
      shared->target = target - (before + through - weight);
    }
    if (reached != 0) return;
    before += __shfl_sync(0xffffffffu, through, 31);
  }
}

// A token from the top_k most likely, under the other truncations; by the whole block.
__device__ void DrawFromBest(const SampleSettings& settings, double uniform, FinishShared* shared) {
  const float most = shared->row.most;
  for (int i = threadIdx.x; i < settings.top_k; i += kFinishThreads) {
    const SampleKey key = shared->best[i];
    shared->weights[i] = key ? exp(static_cast<double>(ValueOfKey(key)) - most) : 0.0;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double mass = 0, kept = 0;
  for (int i = 0; i < settings.top_k; ++i) mass += shared->weights[i];
  const float floor = SampleFloor(settings.min_p, most);
  int count = 0;
  while (count < settings.top_k && shared->best[count] != 0) {
    if (count > 0 && settings.top_p < 1 && kept >= settings.top_p * mass) break;
    if (count > 0 && settings.min_p > 0 && ValueOfKey(shared->best[count]) < floor) break;
    kept += shared->weights[count++];
  }
  double cumulative = 0;
  for (int i = 0; i < count; ++i) {
    cumulative += shared->weights[i];
    shared->drawn = shared->best[i];
    if (cumulative > uniform * kept) break;
  }
}

// Sums over the threads before this one.
__device__ double SumBefore(double x, FinishShared* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  double inclusive = x;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const double before = __shfl_up_sync(0xffffffffu, inclusive, offset);
    if (lane >= offset) inclusive += before;
  }
  if (lane == 31) shared->warps[warp] = inclusive;
  __syncthreads();
  double before = 0;
  for (int w = 0; w < warp; ++w) before += shared->warps[w];
  return before + inclusive - x;
}

// The token within the chosen part, in order of id: each thread takes a few neighbours.
template <typename E>
__device__ void DrawInPart(const E* row, int64_t vocab_size, float scale, FinishShared* shared) {
  if (threadIdx.x == 0) {
    shared->chosen = kFinishThreads;
    shared->last = -1;
  }
  const int first = shared->part * kSamplePart + static_cast<int>(threadIdx.x) * kNeighbours;
  float z[kNeighbours];
#pragma unroll
  for (int j = 0; j < kNeighbours; ++j) {
    z[j] = first + j < vocab_size ? static_cast<float>(row[first + j]) * scale : -INFINITY;
  }
  const float most = shared->row.most;
  double sum = 0;
#pragma unroll
  for (int j = 0; j < kNeighbours; ++j) sum += SampleWeight(z[j], most);
  const double before = SumBefore(sum, shared);
  if (sum > 0) {
    if (before + sum > shared->target) atomicMin(&shared->chosen, static_cast<int>(threadIdx.x));
    atomicMax(&shared->last, static_cast<int>(threadIdx.x));
  }
  __syncthreads();
  // Rounding may let the shares sum to less than the whole.
  const int chosen = shared->chosen < kFinishThreads ? shared->chosen : shared->last;
  if (static_cast<int>(threadIdx.x) != chosen) return;
  double cumulative = before;
  bool found = false;
#pragma unroll
  for (int j = 0; j < kNeighbours; ++j) {
    const float weight = SampleWeight(z[j], most);
    if (found || !(weight > 0)) continue;
    cumulative += weight;
    shared->drawn = MakeSampleKey(z[j], first + j);
    found = cumulative > shared->target;
  }
}

__device__ void WriteFailure(int64_t draw, int64_t columns, const SampleResults& out) {
  for (int c = threadIdx.x; c < columns; c += kFinishThreads) {
    out.support_ids[draw * columns + c] = -1;
    out.support_logprobs[draw * columns + c] = -INFINITY;
  }
  if (threadIdx.x != 0) return;
  out.finite[draw] = 0;
  out.tokens[draw] = -1;
  out.logprobs[draw] = NAN;
}

// The drawn token, then the best ones without it.
__device__ void WriteSupport(const SampleKey* best, SampleKey drawn, double lse, int64_t columns,
                             int32_t* ids, float* logprobs) {
  const int support = static_cast<int>(columns) - 1;
  const int place = CountGreater(best, support, drawn);
  const bool among = place < support && best[place] == drawn;
  for (int c = threadIdx.x; c < columns; c += kFinishThreads) {
    const int i = among && c - 1 >= place ? c : c - 1;
    const SampleKey key = c == 0 ? drawn : i < support ? best[i] : 0;
    ids[c] = key ? TokenOfKey(key) : -1;
    logprobs[c] = key ? static_cast<float>(ValueOfKey(key) - lse) : -INFINITY;
  }
}

// One draw from what the sweep left of its row.
template <typename E>
__global__ void __launch_bounds__(kFinishThreads)
    FinishKernel(const E* logits, const SampleDraw* draws, SampleSettings settings, float scale,
                 SampleResults out, SampleWorkspace workspace) {
  __shared__ FinishShared shared;
  const int64_t draw = blockIdx.x, columns = ColumnsOf(settings);
  SummarizeRow(workspace.sums + draw * workspace.parts, workspace.parts, &shared.row);
  const double uniform = UniformOf(draws[draw]);
  const bool plain = settings.temperature > 0 && !Truncates(settings);
  if (threadIdx.x == 0) {
    shared.drawn = 0;
    shared.part = 0;
    shared.target = 0;
  }
  if (threadIdx.x < 32) {
    __syncwarp();
    if (plain && isfinite(shared.row.most)) ChoosePart(workspace.parts, uniform, &shared);
  }
  MergeBest(workspace.best + draw * workspace.lists * workspace.keep, workspace.lists, workspace.keep,
            &shared);
  if (!isfinite(shared.row.most)) {
    WriteFailure(draw, columns, out);
    return;
  }
  if (plain) {
    DrawInPart(logits + draws[draw].row * settings.stride, settings.vocab_size, scale, &shared);
  } else if (settings.temperature > 0 && DrawsFromBest(settings)) {
    DrawFromBest(settings, uniform, &shared);
  } else if (threadIdx.x == 0) {
    shared.drawn = settings.temperature > 0 ? workspace.drawn[draw] : shared.best[0];
  }
  __syncthreads();
  if (threadIdx.x == 0 && shared.drawn == 0) shared.drawn = shared.best[0];  // a part of negligible weight
  __syncthreads();
  const double lse = shared.row.most + log(shared.row.sum);
  if (threadIdx.x == 0) {
    out.finite[draw] = 1;
    out.tokens[draw] = TokenOfKey(shared.drawn);
    out.logprobs[draw] = static_cast<float>(ValueOfKey(shared.drawn) - lse);
  }
  if (columns > 0 && settings.support <= kMostKept) {
    WriteSupport(shared.best, shared.drawn, lse, columns, out.support_ids + draw * columns,
                 out.support_logprobs + draw * columns);
  }
}

SampleWorkspace Divide(int64_t count, const SampleSettings& settings, void* memory, int64_t* bytes) {
  SampleWorkspace workspace{};
  workspace.parts = static_cast<int>((settings.vocab_size + kSamplePart - 1) / kSamplePart);
  workspace.lists = (workspace.parts + kSampleWarps - 1) / kSampleWarps;
  if (workspace.parts > kMostParts) ThrowCudaError("sampling on the GPU", "the vocabulary is too large");
  workspace.keep = settings.support > kMostKept ? 1 : std::max(settings.support, 1);
  if (DrawsFromBest(settings)) workspace.keep = std::max(workspace.keep, static_cast<int>(settings.top_k));
  auto* next = static_cast<char*>(memory);
  const auto take = [&](int64_t size) {
    char* at = next;
    next += (size + 15) / 16 * 16;
    return at;
  };
  const int64_t sums = count * workspace.parts * static_cast<int64_t>(sizeof(SamplePart));
  workspace.sums = reinterpret_cast<SamplePart*>(take(sums));
  workspace.best = reinterpret_cast<SampleKey*>(take(count * workspace.lists * workspace.keep * 8));
  workspace.drawn = reinterpret_cast<SampleKey*>(take(count * 8));
  workspace.large =
      reinterpret_cast<SampleKey*>(take(settings.support > kMostKept ? count * settings.support * 8 : 0));
  *bytes = next - static_cast<char*>(memory);
  return workspace;
}

template <typename E>
void Sample(ElementType type, const E* logits, const SampleDraw* draws, int64_t count,
            const SampleSettings& settings, const SampleResults& out, const SampleWorkspace& workspace,
            cudaStream_t stream) {
  const float scale = settings.temperature > 0 ? 1.0f / settings.temperature : 1.0f;
  const auto grid = static_cast<unsigned>(count * workspace.lists);
  const auto shared = static_cast<unsigned>(workspace.keep * kPerLane * sizeof(SampleKey));
  constexpr int kMostShared = kMostKept * kPerLane * sizeof(SampleKey);
  CheckCuda(cudaFuncSetAttribute(SweepKernel<E>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared),
            "sampling on the GPU");
  SweepKernel<E><<<grid, kSweepThreads, shared, stream>>>(logits, draws, settings.vocab_size, settings.stride,
                                                          scale, workspace);
  if (settings.temperature > 0 && Truncates(settings) && !DrawsFromBest(settings)) {
    DrawTruncated(type, logits, draws, count, settings, workspace, stream);
  }
  FinishKernel<E><<<static_cast<unsigned>(count), kFinishThreads, 0, stream>>>(logits, draws, settings, scale,
                                                                               out, workspace);
  if (settings.support > kMostKept) {
    WriteLargeSupport(type, logits, draws, count, settings, out, workspace, stream);
  }
}

}  // namespace

int64_t SampleSupportWorkspaceBytes(int64_t count, const SampleSettings& settings) {
  int64_t bytes = 0;
  Divide(count, settings, nullptr, &bytes);
  return bytes;
}

void SampleSupportCuda(ElementType type, const void* logits, const SampleDraw* draws, int64_t count,
                       const SampleSettings& settings, const SampleResults& out, void* workspace,
                       void* stream) {
  if (count == 0) return;
  int64_t bytes = 0;
  const SampleWorkspace parts = Divide(count, settings, workspace, &bytes);
  const auto queue = static_cast<cudaStream_t>(stream);
  if (type == ElementType::kBFloat16) {
    Sample(type, static_cast<const __nv_bfloat16*>(logits), draws, count, settings, out, parts, queue);
  } else {
    Sample(type, static_cast<const float*>(logits), draws, count, settings, out, parts, queue);
  }
  CheckCuda(cudaGetLastError(), "sampling on the GPU");
}

}  // namespace augur
