#include <algorithm>

#include "kernels/cuda_check.h"
#include "kernels/cuda_overlap.h"
#include "kernels/decode/decode_attention_share_cuda.h"

namespace augur {
namespace {

constexpr int kTargetBlocks = 512;
constexpr int kTokensPerBlock = 2048;
// Blocks that share a multiprocessor: as many as let kTargetBlocks run at once, or, where there are more to
// come, as many as have registers enough.
constexpr int kCrowded = 4, kRoomy = 3;
constexpr int kMostSplits = 64;

// What the warps of a block leave for each other.
template <int kDim>
struct Shared {
  float o[kWarps][kQueries][kDim];
  float most[kWarps][kQueries];
  float sum[kWarps][kQueries];
  bool last;
};

// This block's queries: weighted values, maximum and sum over the warps. Thread d holds dimension d.
template <int kDim>
__device__ __forceinline__ float MergeWarps(const Shared<kDim>& shared, int query, int d, float2* summary) {
  float most = shared.most[0][query];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) most = fmaxf(most, shared.most[w][query]);
  float sum = 0, o = 0;
  if (most > -INFINITY) {
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = Exp2(shared.most[w][query] - most);
      sum += weight * shared.sum[w][query];
      o += weight * shared.o[w][query][d];
    }
  } else {  // no tokens, or not a number among the scores
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += shared.sum[w][query];
    o = sum;
    if (sum != sum) most = 0;
  }
  *summary = {most, sum};
  return o;
}

template <int kDim>
__device__ void MergeSplits(const Input<__nv_bfloat16>& in, int64_t head, __nv_bfloat16* out, int d) {
  const float2* summaries = in.summaries + head * in.splits;
  float most = -INFINITY;
  for (int s = 0; s < in.splits; ++s) most = fmaxf(most, __ldcg(&summaries[s]).x);
  float sum = 0, o = 0;
  for (int s = 0; s < in.splits; ++s) {
    const float2 part = __ldcg(&summaries[s]);
    if (part.x == -INFINITY) continue;
    const float weight = Exp2(part.x - most);
    sum += weight * part.y;
    o += weight * __ldcg(&in.partial[(head * in.splits + s) * kDim + d]);
  }
  *out = __float2bfloat16(sum == 0 ? 0.0f : o / sum);
}

template <template <int> typename Share, int kDim, int kBlocksPerSm>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm) FastKernel(Input<__nv_bfloat16> in) {
  constexpr int kTokens = Share<kDim>::kTokens;
  __shared__ Shared<kDim> shared;
  LetNextStart();
  const int64_t sequence = blockIdx.z;
  const int chunks = (in.group + kQueries - 1) / kQueries;
  const int kv_head = blockIdx.y / chunks, first = blockIdx.y % chunks * kQueries;
  const int queries = min(kQueries, in.group - first);
  const int64_t head = static_cast<int64_t>(kv_head) * in.group + first;
  const int length = in.positions[sequence] + 1;
  const int tiles = length > 0 ? (length + kTokens - 1) / kTokens : 0;
  const int share = (tiles + in.splits - 1) / in.splits;
  const int end = min(tiles, static_cast<int>(blockIdx.x + 1) * share);
  const int warp = threadIdx.x / 32;

  const int64_t owner = in.owners ? in.owners[sequence] : sequence;
  const int32_t* table = in.page_table + owner * in.table_stride;
  const int per_page = in.page_size / kTokens;
  const auto offset = [&](int tile, int page) {
    return ((static_cast<int64_t>(page) * in.kv_heads + kv_head) * in.page_size + tile % per_page * kTokens) *
           kDim;
  };
  Share<kDim> mine;
  // Undivided, the first page is known before the length is.
  const bool early = in.splits == 1 && warp / per_page < in.table_stride;
  int page = early ? table[warp / per_page] : 0;
  int tile = static_cast<int>(blockIdx.x) * share + warp;
  if (tile < end && !early) page = table[tile / per_page];
  int64_t at = offset(tile, page);
  // Keys and values of earlier steps are there before the kernel in front of this one is done; in a prompt's
  // pass that kernel writes them.
  const bool old = in.owners == nullptr && (tile + 1) * kTokens < length;
  if (!old) WaitForEarlier();
  if (tile < end) {
    mine.LoadKeys(in, at);
    mine.LoadValues(in, at);
  }
  WaitForEarlier();
  mine.LoadQueries(in.q + sequence * in.q_stride + head * kDim, queries);
  if (tile < end) {
    int next = tile + kWarps;
    page = next < end ? table[next / per_page] : 0;
    for (; tile < end; tile = next, next += kWarps) {
      float s[Share<kDim>::kScores];
      mine.Scores(s);
      const bool more = next < end;
      if (more) {
        at = offset(next, page);
        mine.LoadKeys(in, at);
        page = next + kWarps < end ? table[(next + kWarps) / per_page] : 0;
      }
      const int count = length - tile * kTokens;
      if (count < kTokens) mine.ClearValues(count);
      mine.Weigh(s, in.scale, count);
      mine.AddValues(s);
      if (more) mine.LoadValues(in, at);
    }
  }

  const int row = mine.Row(), pair = mine.Pair();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = SumOverTokens(mine.sum[i]);
    if (row == 0) {
      shared.most[warp][2 * pair + i] = mine.most[i];
      shared.sum[warp][2 * pair + i] = sum;
    }
#pragma unroll
    for (int j = 0; j < kDim / 64; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        *reinterpret_cast<float2*>(&shared.o[warp][2 * pair + i][mine.Dimension(j, k)]) = {
            mine.o[j][k][i], mine.o[j][k][i + 2]};
      }
    }
  }
  __syncthreads();

  const int d = threadIdx.x % kDim;
  for (int query = threadIdx.x / kDim; query < queries; query += kThreads / kDim) {
    const int64_t at = sequence * in.heads + head + query;
    float2 summary;
    const float o = MergeWarps(shared, query, d, &summary);
    if (in.splits == 1) {
      in.out[at * kDim + d] = __float2bfloat16(summary.y == 0 ? 0.0f : o / summary.y);
      continue;
    }
    const int64_t part = at * in.splits + blockIdx.x;
    if (summary.x != -INFINITY) in.partial[part * kDim + d] = o;
    if (d == 0) in.summaries[part] = summary;
  }
  if (in.splits == 1) return;

  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* arrived = in.arrived + sequence * gridDim.y + blockIdx.y;
    shared.last = atomicAdd(arrived, 1) == in.splits - 1;
    if (shared.last) *arrived = 0;
  }
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  for (int query = threadIdx.x / kDim; query < queries; query += kThreads / kDim) {
    const int64_t at = sequence * in.heads + head + query;
    MergeSplits<kDim>(in, at, in.out + at * kDim + d, d);
  }
}

// Any head size and type: one warp per query head, one token at a time.
template <typename E>
__global__ void __launch_bounds__(kThreads) PlainKernel(Input<E> in) {
  constexpr int kPer = 8;  // elements of a head of 256 that a lane holds
  Overlap();
  const int64_t sequence = blockIdx.z;
  const int head = blockIdx.y * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (head >= in.heads) return;
  const int kv_head = head / in.group, length = in.positions[sequence] + 1;
  const int64_t owner = in.owners ? in.owners[sequence] : sequence;
  const E* q = in.q + sequence * in.q_stride + static_cast<int64_t>(head) * in.head_dim;
  float query[kPer], o[kPer] = {}, most = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    query[i] = i * 32 + lane < in.head_dim ? static_cast<float>(q[i * 32 + lane]) * in.scale : 0.0f;
  }
  const auto read = [&](const E* plain, const uint8_t* fp8, const float* scale, int64_t at, int d) {
    if (fp8 == nullptr) return static_cast<float>(plain[at + d]);
    const __half_raw x = __nv_cvt_fp8_to_halfraw(fp8[at + d], __NV_E4M3);
    return __half2float(x) * scale[at / in.head_dim];
  };
  const auto key = [&](int64_t at, int d) { return read(in.keys, in.keys_fp8, in.key_scale, at, d); };
  const auto value = [&](int64_t at, int d) { return read(in.values, in.values_fp8, in.value_scale, at, d); };
  for (int t = 0; t < length; ++t) {
    const int64_t page = in.page_table[owner * in.table_stride + t / in.page_size];
    const int64_t at = ((page * in.kv_heads + kv_head) * in.page_size + t % in.page_size) * in.head_dim;
    float score = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (i * 32 + lane < in.head_dim) score += query[i] * key(at, i * 32 + lane);
    }
    score = WarpSum(score);
    const float now = fmaxf(most, score), shrink = exp2f(most - now), weight = exp2f(score - now);
    most = now;
    sum = sum * shrink + weight;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (i * 32 + lane < in.head_dim) {
        o[i] = o[i] * shrink + weight * value(at, i * 32 + lane);
      }
    }
  }
  E* out = in.out + (sequence * in.heads + head) * in.head_dim;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    if (i * 32 + lane < in.head_dim) out[i * 32 + lane] = static_cast<E>(sum == 0 ? 0.0f : o[i] / sum);
  }
}

int64_t SummaryBytes(int64_t sequences, int heads, int splits) {
  return sequences * heads * splits * static_cast<int64_t>(sizeof(float2));
}

}  // namespace

int DecodeAttentionSplits(int64_t sequences, int kv_heads, int64_t longest) {
  const int64_t blocks = std::max<int64_t>(1, sequences * kv_heads);
  const int64_t fill = (kTargetBlocks + blocks - 1) / blocks;
  const int64_t even = (longest + kTokensPerBlock - 1) / kTokensPerBlock;
  int splits = 1;
  while (splits < std::max(fill, even) && splits < kMostSplits) splits *= 2;
  return splits;
}

int64_t DecodeAttentionWorkspaceBytes(int64_t sequences, int heads, int head_dim, int splits) {
  const int64_t counters = sequences * heads * static_cast<int64_t>(sizeof(int32_t));
  return counters / 16 * 16 + 16 + SummaryBytes(sequences, heads, splits) +
         sequences * heads * splits * head_dim * static_cast<int64_t>(sizeof(float));
}

template <typename T>
void DecodeAttentionCuda(const DecodeAttention<T>& in, void* stream) {
  using E = typename CudaElement<T>::Type;
  if (in.sequences == 0) return;
  const auto queue = static_cast<cudaStream_t>(stream);
  const auto sequences = static_cast<unsigned>(in.sequences);
  const int group = in.heads / in.kv_heads;
  Input<E> input{in.heads,
                 group,
                 in.kv_heads,
                 in.head_dim,
                 OnDevice(in.q),
                 in.q_stride,
                 OnDevice(in.keys),
                 OnDevice(in.values),
                 in.keys_fp8,
                 in.values_fp8,
                 in.key_scale,
                 in.value_scale,
                 in.page_size,
                 in.page_table,
                 in.table_stride,
                 in.positions,
                 in.owners,
                 OnDevice(in.out),
                 in.splits,
                 nullptr,
                 nullptr,
                 nullptr,
                 1.4426950408889634f / sqrtf(static_cast<float>(in.head_dim))};
  if (in.splits > 1) {
    auto* bytes = static_cast<char*>(in.workspace);
    const int64_t counters = in.sequences * in.heads * static_cast<int64_t>(sizeof(int32_t)) / 16 * 16 + 16;
    input.arrived = reinterpret_cast<int32_t*>(bytes);
    input.summaries = reinterpret_cast<float2*>(bytes + counters);
    input.partial =
        reinterpret_cast<float*>(bytes + counters + SummaryBytes(in.sequences, in.heads, in.splits));
  }
  bool fast = false;
  if constexpr (sizeof(E) == 2) {
    const dim3 grid(static_cast<unsigned>(in.splits),
                    static_cast<unsigned>(in.kv_heads * ((group + kQueries - 1) / kQueries)), sequences);
    const bool crowded = static_cast<int64_t>(grid.x) * grid.y * grid.z <= kTargetBlocks;
    const int tokens = in.keys_fp8 != nullptr ? WideShareFp8<128>::kTokens : kTile;
    fast = (in.head_dim == 64 || in.head_dim == 128) && in.page_size % tokens == 0;
    const auto launch = [&]<template <int> typename Share>() {
      if (in.head_dim == 64) {
        LaunchEarly(FastKernel<Share, 64, kCrowded>, grid, kThreads, 0, queue, input);
      } else if (crowded) {
        LaunchEarly(FastKernel<Share, 128, kCrowded>, grid, kThreads, 0, queue, input);
      } else {
        LaunchEarly(FastKernel<Share, 128, kRoomy>, grid, kThreads, 0, queue, input);
      }
    };
    if (fast && in.keys_fp8 != nullptr) {
      crowded ? launch.template operator()<WarpShareFp8>() : launch.template operator()<WideShareFp8>();
    } else if (fast) {
      launch.template operator()<WarpShare>();
    }
  }
  if (!fast) {
    const dim3 grid(1, static_cast<unsigned>((in.heads + kWarps - 1) / kWarps), sequences);
    LaunchEarly(PlainKernel<E>, grid, kThreads, 0, queue, input);
  }
  CheckCuda(cudaGetLastError(), "attention over pages on the GPU");
}

template void DecodeAttentionCuda(const DecodeAttention<float>&, void*);
template void DecodeAttentionCuda(const DecodeAttention<BFloat16>&, void*);

}  // namespace augur
