// Draws under truncations, and supports of any size: rare, so written to be short. Everything is a search for
// a key: the greatest one at which the weight of all tokens not below it reaches a target.
#include <cuda_bf16.h>

#include "kernels/cuda_rows.h"
#include "kernels/decode/sample_keys_cuda.h"

namespace augur {
namespace {

constexpr int kThreads = 1024;

template <typename E>
struct Row {
  const E* logits;
  int64_t vocab_size;
  float scale;
  float most;

  __device__ SampleKey Key(int64_t token) const {
    return MakeSampleKey(static_cast<float>(logits[token]) * scale, static_cast<int>(token));
  }
};

__device__ double BlockTotal(double x) {
  __shared__ double warps[kThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += warps[w];
  return sum;
}

// The weight of the tokens not below `key`, or, counting, their number.
template <bool kCount, typename E>
__device__ double WeightFrom(const Row<E>& row, SampleKey key) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < row.vocab_size; i += kThreads) {
    const SampleKey mine = row.Key(i);
    if (mine == 0 || mine < key) continue;
    sum += kCount ? 1.0 : static_cast<double>(SampleWeight(ValueOfKey(mine), row.most));
  }
  return BlockTotal(sum);
}

// The greatest key whose WeightFrom reaches the target, or exceeds it where `beyond`; 0 where none does.
template <bool kCount, typename E>
__device__ SampleKey Find(const Row<E>& row, double target, bool beyond) {
  const auto reaches = [&](SampleKey key) {
    const double weight = WeightFrom<kCount>(row, key);
    return beyond ? weight > target : weight >= target;
  };
  SampleKey key = 0;
  for (int bit = 63; bit >= 0; --bit) {
    // The low half is 2^32 - 1 - token, whose upper bits are all ones.
    const bool sure = bit < 32 && ((row.vocab_size - 1) >> bit) == 0;
    const SampleKey candidate = key | (1ull << bit);
    if (sure || reaches(candidate)) key = candidate;
  }
  return key;
}

template <typename E>
__device__ Row<E> MakeRow(const E* logits, const SampleDraw& draw, const SampleSettings& settings,
                          float most) {
  const float scale = settings.temperature > 0 ? 1.0f / settings.temperature : 1.0f;
  return {logits + draw.row * settings.stride, settings.vocab_size, scale, most};
}

template <typename E>
__global__ void __launch_bounds__(kThreads)
    DrawKernel(const E* logits, const SampleDraw* draws, SampleSettings settings, SampleWorkspace workspace) {
  __shared__ SampleRow total;
  SummarizeRow(workspace.sums + static_cast<int64_t>(blockIdx.x) * workspace.parts, workspace.parts, &total);
  __syncthreads();
  if (!isfinite(total.most)) return;
  const Row<E> row = MakeRow(logits, draws[blockIdx.x], settings, total.most);
  SampleKey least = 0;
  double mass = total.sum;
  if (settings.top_k > 0) {
    const double possible = WeightFrom<true>(row, 0);
    least = Find<true>(row, fmin(possible, static_cast<double>(settings.top_k)), false);
    mass = WeightFrom<false>(row, least);
  }
  if (settings.top_p < 1) least = max(least, Find<false>(row, settings.top_p * mass, false));
  if (settings.min_p > 0) {
    const float floor = fminf(SampleFloor(settings.min_p, total.most), total.most);
    least = max(least, MakeSampleKey(floor, 0) & 0xffffffff00000000ull);
  }
  const double target = UniformOf(draws[blockIdx.x]) * WeightFrom<false>(row, least);
  const SampleKey drawn = Find<false>(row, target, true);
  if (threadIdx.x == 0) workspace.drawn[blockIdx.x] = drawn;
}

template <typename E>
__global__ void __launch_bounds__(kThreads)
    SupportKernel(const E* logits, const SampleDraw* draws, SampleSettings settings, SampleResults out,
                  SampleWorkspace workspace) {
  __shared__ SampleRow total;
  __shared__ int found;
  if (threadIdx.x == 0) found = 0;
  SummarizeRow(workspace.sums + static_cast<int64_t>(blockIdx.x) * workspace.parts, workspace.parts, &total);
  __syncthreads();
  if (!isfinite(total.most)) return;
  const Row<E> row = MakeRow(logits, draws[blockIdx.x], settings, total.most);
  const double possible = WeightFrom<true>(row, 0);
  const SampleKey least = Find<true>(row, fmin(possible, static_cast<double>(settings.support)), false);
  SampleKey* best = workspace.large + static_cast<int64_t>(blockIdx.x) * settings.support;
  for (int64_t i = threadIdx.x; i < row.vocab_size; i += kThreads) {
    const SampleKey key = row.Key(i);
    if (key != 0 && key >= least) best[atomicAdd(&found, 1)] = key;
  }
  __syncthreads();
  const int64_t columns = ColumnsOf(settings), first = blockIdx.x * columns;
  const int token = out.tokens[blockIdx.x];
  const SampleKey drawn = row.Key(token);
  const double lse = total.most + log(total.sum);
  for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
    out.support_ids[first + c] = c == 0 ? token : -1;
    out.support_logprobs[first + c] = c == 0 ? static_cast<float>(ValueOfKey(drawn) - lse) : -INFINITY;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < found; i += kThreads) {
    const SampleKey key = best[i];
    if (key == drawn) continue;
    int column = key < drawn && drawn >= least ? 0 : 1;
    for (int k = 0; k < found; ++k) column += best[k] > key;
    out.support_ids[first + column] = TokenOfKey(key);
    out.support_logprobs[first + column] = static_cast<float>(ValueOfKey(key) - lse);
  }
}

}  // namespace

void DrawTruncated(ElementType type, const void* logits, const SampleDraw* draws, int64_t count,
                   const SampleSettings& settings, const SampleWorkspace& workspace, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(count);
  if (type == ElementType::kBFloat16) {
    DrawKernel<<<blocks, kThreads, 0, stream>>>(static_cast<const __nv_bfloat16*>(logits), draws, settings,
                                                workspace);
  } else {
    DrawKernel<<<blocks, kThreads, 0, stream>>>(static_cast<const float*>(logits), draws, settings,
                                                workspace);
  }
}

void WriteLargeSupport(ElementType type, const void* logits, const SampleDraw* draws, int64_t count,
                       const SampleSettings& settings, const SampleResults& out,
                       const SampleWorkspace& workspace, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(count);
  if (type == ElementType::kBFloat16) {
    SupportKernel<<<blocks, kThreads, 0, stream>>>(static_cast<const __nv_bfloat16*>(logits), draws, settings,
                                                   out, workspace);
  } else {
    SupportKernel<<<blocks, kThreads, 0, stream>>>(static_cast<const float*>(logits), draws, settings, out,
                                                   workspace);
  }
}

}  // namespace augur
