#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda_check.h"
#include "kernels/cuda_rows.h"
#include "kernels/sample_keys_cuda.h"

namespace augur {
namespace {

constexpr int kWarps = kSampleThreads / 32;
constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Whether the tokens that truncations leave are among the most likely that the sweep keeps.
__host__ __device__ bool DrawsFromBest(const SampleSettings& settings) {
  return settings.top_k > 0 && settings.top_k <= kMostKept;
}

// This thread's elements of the slice, scaled: kVector neighbours at a time, the threads side by side, -inf
// behind the vocabulary. Element j is token TokenAt(j).
template <typename E>
struct Elements {
  static constexpr int kVector = 16 / sizeof(E);
  float z[kSamplePerThread];

  static __device__ int64_t TokenAt(int j) {
    return static_cast<int64_t>(blockIdx.x) * kSampleSlice +
           (j / kVector * kSampleThreads + static_cast<int>(threadIdx.x)) * kVector + j % kVector;
  }

  __device__ void Load(const E* row, int64_t vocab, float scale) {
    const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
#pragma unroll
    for (int j = 0; j < kSamplePerThread; j += kVector) {
      const int64_t token = TokenAt(j);
      if (aligned && token + kVector <= vocab) {
        LoadVector<kVector>(row + token, z + j);
#pragma unroll
        for (int k = 0; k < kVector; ++k) z[j + k] *= scale;
      } else {
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          z[j + k] = token + k < vocab ? static_cast<float>(row[token + k]) * scale : -INFINITY;
        }
      }
    }
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
  SampleKey sorted[kWarps][32];
  SampleKey candidates[kMostKept * kSamplePerThread];
  SampleKey threshold;
  int found;
  float most[32], sum[32];
};

// The `keep` most likely of the slice, exactly. At least `keep` tokens are as likely as the keep-th largest
// of the threads' own best ones, and only the keep threads that hold one can hold more of them: few
// candidates are left to sort.
template <typename E>
__device__ void KeepBest(const Elements<E>& elements, SampleKey mine, int keep, SampleKey* best,
                         SweepShared* shared) {
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
    for (int w = 0; w < kWarps && rank < keep; ++w) {
      if (w != warp) rank += CountGreater(shared->sorted[w], 32, sorted);
    }
    if (rank == keep - 1) shared->threshold = sorted;
  }
  __syncthreads();
  const SampleKey threshold = shared->threshold;
  if (mine != 0 && mine >= threshold) {
#pragma unroll
    for (int j = 0; j < kSamplePerThread; ++j) {
      const SampleKey key = MakeSampleKey(elements.z[j], static_cast<int>(elements.TokenAt(j)));
      if (key != 0 && key >= threshold) shared->candidates[atomicAdd(&shared->found, 1)] = key;
    }
  }
  __syncthreads();
  const int found = shared->found;
  for (int i = threadIdx.x; i < found; i += kSampleThreads) {
    const SampleKey key = shared->candidates[i];
    int rank = 0;
    for (int k = 0; k < found; ++k) rank += shared->candidates[k] > key;
    if (rank < keep) best[rank] = key;
  }
  for (int i = found + threadIdx.x; i < keep; i += kSampleThreads) best[i] = 0;
}

// One slice of one row, read once.
template <typename E>
__global__ void __launch_bounds__(kSampleThreads)
    SweepKernel(const E* logits, const SampleDraw* draws, int64_t vocab, int64_t stride, float scale,
                SampleWorkspace workspace) {
  __shared__ SweepShared shared;
  const int64_t draw = blockIdx.y, slice = draw * workspace.slices + blockIdx.x;
  Elements<E> elements;
  elements.Load(logits + draws[draw].row * stride, vocab, scale);
  SampleKey mine = 0;
  bool nan = false;
  float largest = -INFINITY;
#pragma unroll
  for (int j = 0; j < kSamplePerThread; ++j) {
    nan |= elements.z[j] != elements.z[j];
    largest = fmaxf(largest, elements.z[j]);
  }
#pragma unroll
  for (int j = kSamplePerThread - 1; j >= 0; --j) {
    if (elements.z[j] == largest) mine = MakeSampleKey(largest, static_cast<int>(elements.TokenAt(j)));
  }
  const float most = BlockMax(largest, shared.most);
  float sum = 0;
  if (most > -INFINITY) {
#pragma unroll
    for (int j = 0; j < kSamplePerThread; ++j) sum += Exp2((elements.z[j] - most) * kLog2E);
  }
  sum = BlockSum(sum, shared.sum);
  const bool any_nan = __syncthreads_or(nan);
  if (threadIdx.x == 0) workspace.parts[slice] = {any_nan ? NAN : most, sum};
  KeepBest(elements, mine, workspace.keep, workspace.best + slice * workspace.keep, &shared);
}

struct FinishShared {
  SampleRow row;
  int slice;      // that the token falls into
  double target;  // weight before it within the slice
  double warps[kWarps];
  int chosen, last;  // threads: the first whose share reaches the target; the last that has a share
  SampleKey drawn;
  SampleKey best[kMostKept];
  double weights[kMostKept];  // of the best
  SampleKey floor;
};

// The most likely of the row from those of its slices: those not below the keep-th of any slice are ranked.
__device__ void MergeBest(const SampleKey* lists, int slices, int keep, FinishShared* shared) {
  if (threadIdx.x == 0) shared->floor = 0;
  for (int i = threadIdx.x; i < keep; i += kSampleThreads) shared->best[i] = 0;
  __syncthreads();
  for (int s = threadIdx.x; s < slices; s += kSampleThreads) {
    atomicMax(&shared->floor, lists[s * keep + keep - 1]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < slices * keep; i += kSampleThreads) {
    const SampleKey key = lists[i];
    if (key == 0 || key < shared->floor) continue;
    int rank = i % keep;
    for (int s = 0; s < slices && rank < keep; ++s) {
      if (s != i / keep) rank += CountGreater(lists + s * keep, keep, key);
    }
    if (rank < keep) shared->best[rank] = key;
  }
  __syncthreads();
}

// The slice that the draw's share of the whole falls into; by one thread. Where rounding lets the parts sum
// to less than the whole, it is the last.
__device__ void ChooseSlice(int slices, double uniform, FinishShared* shared) {
  double target = uniform * shared->row.sum;
  for (int s = 0; s < slices; ++s) {
    const double weight = shared->row.weights[s];
    if (!(weight > 0)) continue;
    shared->slice = s;
    shared->target = target;
    if (target < weight) break;
    target -= weight;
  }
}

// A token from the top_k most likely, under the other truncations; by the whole block.
__device__ void DrawFromBest(const SampleSettings& settings, double uniform, FinishShared* shared) {
  const float most = shared->row.most;
  for (int i = threadIdx.x; i < settings.top_k; i += kSampleThreads) {
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

// The token within the chosen slice, in order of id: each thread takes 32 neighbours.
template <typename E>
__device__ void DrawInSlice(const E* row, int64_t vocab, float scale, FinishShared* shared) {
  if (threadIdx.x == 0) {
    shared->chosen = kSampleThreads;
    shared->last = -1;
  }
  const int64_t first = static_cast<int64_t>(shared->slice) * kSampleSlice + threadIdx.x * kSamplePerThread;
  const int count = static_cast<int>(min(static_cast<int64_t>(kSamplePerThread), vocab - first));
  const float most = shared->row.most;
  double sum = 0;
#pragma unroll 8
  for (int j = 0; j < kSamplePerThread; ++j) {
    if (j < count) sum += SampleWeight(static_cast<float>(row[first + j]) * scale, most);
  }
  const double before = SumBefore(sum, shared);
  if (sum > 0) {
    if (before + sum > shared->target) atomicMin(&shared->chosen, static_cast<int>(threadIdx.x));
    atomicMax(&shared->last, static_cast<int>(threadIdx.x));
  }
  __syncthreads();
  // Rounding may let the parts sum to less than the whole.
  const int chosen = shared->chosen < kSampleThreads ? shared->chosen : shared->last;
  if (static_cast<int>(threadIdx.x) != chosen) return;
  double cumulative = before;
  for (int j = 0; j < count; ++j) {
    const float z = static_cast<float>(row[first + j]) * scale, weight = SampleWeight(z, most);
    if (!(weight > 0)) continue;
    cumulative += weight;
    shared->drawn = MakeSampleKey(z, static_cast<int>(first) + j);
    if (cumulative > shared->target) break;
  }
}

__device__ void WriteFailure(int64_t draw, int64_t columns, const SampleResults& out) {
  for (int c = threadIdx.x; c < columns; c += kSampleThreads) {
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
  for (int c = threadIdx.x; c < columns; c += kSampleThreads) {
    const int i = among && c - 1 >= place ? c : c - 1;
    const SampleKey key = c == 0 ? drawn : i < support ? best[i] : 0;
    ids[c] = key ? TokenOfKey(key) : -1;
    logprobs[c] = key ? static_cast<float>(ValueOfKey(key) - lse) : -INFINITY;
  }
}

// One draw from what the sweep left of its row.
template <typename E>
__global__ void __launch_bounds__(kSampleThreads)
    FinishKernel(const E* logits, const SampleDraw* draws, SampleSettings settings, float scale,
                 SampleResults out, SampleWorkspace workspace) {
  __shared__ FinishShared shared;
  const int64_t draw = blockIdx.x, columns = ColumnsOf(settings);
  SummarizeRow(workspace.parts + draw * workspace.slices, workspace.slices, &shared.row);
  const double uniform = UniformOf(draws[draw]);
  const bool plain = settings.temperature > 0 && !Truncates(settings);
  if (threadIdx.x == 0) {
    shared.drawn = 0;
    shared.slice = 0;
    shared.target = 0;
    if (plain && isfinite(shared.row.most)) ChooseSlice(workspace.slices, uniform, &shared);
  }
  MergeBest(workspace.best + draw * workspace.slices * workspace.keep, workspace.slices, workspace.keep,
            &shared);
  if (!isfinite(shared.row.most)) {
    WriteFailure(draw, columns, out);
    return;
  }
  if (plain) {
    DrawInSlice(logits + draws[draw].row * settings.stride, settings.vocab, scale, &shared);
  } else if (settings.temperature > 0 && DrawsFromBest(settings)) {
    DrawFromBest(settings, uniform, &shared);
  } else if (threadIdx.x == 0) {
    shared.drawn = settings.temperature > 0 ? workspace.drawn[draw] : shared.best[0];
  }
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
  workspace.slices = static_cast<int>((settings.vocab + kSampleSlice - 1) / kSampleSlice);
  if (workspace.slices > kMostSlices) ThrowCudaError("sampling on the GPU", "the vocabulary is too large");
  workspace.keep = settings.support > kMostKept ? 1 : std::max(settings.support, 1);
  if (DrawsFromBest(settings)) workspace.keep = std::max(workspace.keep, static_cast<int>(settings.top_k));
  auto* next = static_cast<char*>(memory);
  const auto take = [&](int64_t size) {
    char* at = next;
    next += (size + 15) / 16 * 16;
    return at;
  };
  const int64_t parts = count * workspace.slices;
  workspace.parts = reinterpret_cast<SampleSlice*>(take(parts * static_cast<int64_t>(sizeof(SampleSlice))));
  workspace.best = reinterpret_cast<SampleKey*>(take(parts * workspace.keep * 8));
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
  const dim3 grid(static_cast<unsigned>(workspace.slices), static_cast<unsigned>(count));
  SweepKernel<E>
      <<<grid, kSampleThreads, 0, stream>>>(logits, draws, settings.vocab, settings.stride, scale, workspace);
  if (settings.temperature > 0 && Truncates(settings) && !DrawsFromBest(settings)) {
    DrawTruncated(type, logits, draws, count, settings, workspace, stream);
  }
  FinishKernel<E><<<static_cast<unsigned>(count), kSampleThreads, 0, stream>>>(logits, draws, settings, scale,
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
