#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda_check.h"
#include "kernels/row_stats.h"
#include "kernels/row_stats_math.h"

namespace augur {
namespace {

constexpr int kThreads = 512;
constexpr int kGroup = 8;  // elements a thread takes at a time: one byte of the support bitmap

__device__ float FastExp(float x) { return __expf(x); }
__device__ double FastExp(double x) { return exp(x); }

// Eight consecutive elements of one row, loaded 16 bytes at a time where the row allows it.
template <typename T, typename E>
__device__ void LoadGroup(const E* row, int64_t index, int64_t vocab, bool aligned, T out[kGroup]) {
  if (aligned && index + kGroup <= vocab) {
    alignas(16) E raw[kGroup];
    constexpr int kVectors = kGroup * sizeof(E) / 16;
    for (int v = 0; v < kVectors; ++v) {
      reinterpret_cast<uint4*>(raw)[v] = reinterpret_cast<const uint4*>(row + index)[v];
    }
    for (int i = 0; i < kGroup; ++i) out[i] = static_cast<T>(raw[i]);
  } else {
    for (int i = 0; i < kGroup; ++i) {
      out[i] = index + i < vocab ? static_cast<T>(row[index + i]) : static_cast<T>(-INFINITY);
    }
  }
}

template <typename T, typename E>
__device__ void StoreGroup(E* row, int64_t index, int64_t width, bool aligned, const T values[kGroup]) {
  if (aligned && index + kGroup <= width) {
    alignas(16) E raw[kGroup];
    for (int i = 0; i < kGroup; ++i) raw[i] = static_cast<E>(values[i]);
    constexpr int kVectors = kGroup * sizeof(E) / 16;
    for (int v = 0; v < kVectors; ++v) {
      reinterpret_cast<uint4*>(row + index)[v] = reinterpret_cast<const uint4*>(raw)[v];
    }
  } else {
    for (int i = 0; i < kGroup && index + i < width; ++i) row[index + i] = static_cast<E>(values[i]);
  }
}

template <typename E>
__device__ bool IsAligned(const E* row) {
  return reinterpret_cast<uintptr_t>(row) % 16 == 0;
}

// Adds the elements of a group that are not in the support.
template <typename T>
__device__ void AddGroup(const T z[kGroup], unsigned excluded, SoftmaxSums<T>* sums) {
  T top = -INFINITY;
  for (int i = 0; i < kGroup; ++i) top = (excluded >> i & 1) ? top : fmax(top, z[i]);
  if (top > sums->max) sums->Rebase(top);
  if (sums->max == static_cast<T>(-INFINITY)) return;
  for (int i = 0; i < kGroup; ++i) {
    const T d = z[i] - sums->max;
    const T e = (excluded >> i & 1) ? T(0) : FastExp(d);
    sums->sum += e;
    sums->square += e * e;
    sums->weighted += e == 0 ? T(0) : e * d;
  }
}

template <typename T>
__device__ SoftmaxSums<T> MergeWarp(SoftmaxSums<T> sums) {
  for (int offset = 16; offset > 0; offset /= 2) {
    SoftmaxSums<T> other;
    other.max = __shfl_xor_sync(0xffffffffu, sums.max, offset);
    other.sum = __shfl_xor_sync(0xffffffffu, sums.sum, offset);
    other.square = __shfl_xor_sync(0xffffffffu, sums.square, offset);
    other.weighted = __shfl_xor_sync(0xffffffffu, sums.weighted, offset);
    sums.Merge(other);
  }
  return sums;
}

template <typename T, typename E>
__global__ void __launch_bounds__(kThreads) StatsKernel(LogitRows rows, RowStats<T> out) {
  extern __shared__ uint32_t bitmap[];  // one bit per token of the vocabulary: is it in the support?
  __shared__ SoftmaxSums<T> warp_sums[kThreads / 32];
  const int64_t r = blockIdx.x;
  const E* logits = static_cast<const E*>(rows.logits) + r * rows.width;
  const int32_t* support = rows.support + r * rows.columns;
  const LogitScale<T> scale{static_cast<T>(1 / rows.temperature), static_cast<T>(rows.softcap)};

  const int words = static_cast<int>((rows.vocab + 31) / 32);
  for (int w = threadIdx.x; w < words; w += kThreads) bitmap[w] = 0;
  __syncthreads();
  for (int c = threadIdx.x; c < rows.columns; c += kThreads) {
    if (support[c] >= 0) atomicOr(&bitmap[support[c] / 32], 1u << (support[c] % 32));
  }
  __syncthreads();

  SoftmaxSums<T> sums;
  const bool aligned = IsAligned(logits);
  const auto* bytes = reinterpret_cast<const uint8_t*>(bitmap);
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kGroup; j < rows.vocab; j += kThreads * kGroup) {
    T z[kGroup];
    LoadGroup(logits, j, rows.vocab, aligned, z);
    for (int i = 0; i < kGroup; ++i) z[i] = scale(z[i]);
    AddGroup(z, bytes[j / kGroup], &sums);
  }
  sums = MergeWarp(sums);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sums;
  __syncthreads();
  if (threadIdx.x >= 32) return;

  const int lane = threadIdx.x;
  const SoftmaxSums<T> tail = MergeWarp(lane < kThreads / 32 ? warp_sums[lane] : SoftmaxSums<T>());
  const auto support_z = [&](int c) {
    return scale(out.support_logits ? out.support_logits[r * rows.columns + c]
                                    : static_cast<T>(logits[support[c]]));
  };
  SoftmaxSums<T> head;
  for (int c = lane; c < rows.columns; c += 32) {
    if (support[c] >= 0) head.Add(support_z(c));
  }
  SoftmaxSums<T> all = MergeWarp(head);
  all.Merge(tail);
  const T log_sum_exp = all.max + log(all.sum);
  for (int c = lane; c < rows.columns; c += 32) {
    out.support_logprobs[r * rows.columns + c] = support[c] >= 0 ? support_z(c) - log_sum_exp : -INFINITY;
  }
  if (lane != 0) return;
  const T tail_scale = tail.sum > 0 ? exp(tail.max - log_sum_exp) : T(0);
  out.log_sum_exp[r] = log_sum_exp;
  out.entropy[r] = log(all.sum) - all.weighted / all.sum;
  out.tail_mass[r] = tail.sum * tail_scale;
  out.tail_square[r] = tail.square * tail_scale * tail_scale;
}

template <typename T, typename E>
__global__ void __launch_bounds__(kThreads) GradientKernel(LogitRows rows, RowGradient<T> parts) {
  extern __shared__ uint8_t storage[];
  T* at_support = reinterpret_cast<T*>(storage);  // [columns]
  const int64_t r = blockIdx.x;
  const E* logits = static_cast<const E*>(rows.logits) + r * rows.width;
  E* gradient = static_cast<E*>(parts.gradient) + r * rows.width;
  const int32_t* support = rows.support + r * rows.columns;
  const LogitScale<T> scale{static_cast<T>(1 / rows.temperature), static_cast<T>(rows.softcap)};
  const T upstream = parts.scale ? *parts.scale : T(1);
  const T log_sum_exp = parts.log_sum_exp[r];
  const T entropy_weight = parts.entropy_weight ? parts.entropy_weight[r] : T(0);
  const T constant = parts.dense[r] + (entropy_weight != 0 ? entropy_weight * parts.entropy[r] : T(0));

  const auto dense_at = [&](T logit) {
    const T log_pi = scale(logit) - log_sum_exp;
    const T pi = FastExp(log_pi);
    return pi * (constant + (entropy_weight != 0 && pi > 0 ? entropy_weight * log_pi : T(0)));
  };
  // The support is computed first: the gradient may overwrite the logits.
  bool live = parts.dense[r] != 0 || entropy_weight != 0;
  for (int c = threadIdx.x; c < rows.columns; c += kThreads) {
    const T sparse = parts.sparse[r * rows.columns + c];
    live |= sparse != 0;
    if (support[c] < 0) continue;
    const T logit = static_cast<T>(logits[support[c]]);
    at_support[c] = upstream * scale.Slope(logit) * (dense_at(logit) + sparse);
  }
  live = __syncthreads_or(live);

  const bool aligned = IsAligned(logits) && IsAligned(gradient);
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kGroup; j < rows.width; j += kThreads * kGroup) {
    T values[kGroup] = {};
    if (live) {
      LoadGroup(logits, j, rows.vocab, aligned, values);
      for (int i = 0; i < kGroup; ++i) {
        values[i] = j + i < rows.vocab ? upstream * scale.Slope(values[i]) * dense_at(values[i]) : T(0);
      }
    }
    StoreGroup(gradient, j, rows.width, aligned, values);
  }
  __syncthreads();
  if (!live) return;
  for (int c = threadIdx.x; c < rows.columns; c += kThreads) {
    if (support[c] >= 0) gradient[support[c]] = static_cast<E>(at_support[c]);
  }
}

template <typename T, typename E>
void LaunchStats(const LogitRows& rows, const RowStats<T>& stats, cudaStream_t stream) {
  const size_t bytes = (rows.vocab + 31) / 32 * 4;
  const auto kernel = StatsKernel<T, E>;
  CheckCuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "row statistics on the GPU");
  kernel<<<static_cast<unsigned>(rows.rows), kThreads, bytes, stream>>>(rows, stats);
}

template <typename T, typename E>
void LaunchGradient(const LogitRows& rows, const RowGradient<T>& parts, cudaStream_t stream) {
  GradientKernel<T, E>
      <<<static_cast<unsigned>(rows.rows), kThreads, rows.columns * sizeof(T), stream>>>(rows, parts);
}

}  // namespace

template <>
void RowStatsCuda(const LogitRows& rows, const RowStats<double>& stats, void* stream) {
  if (rows.rows == 0) return;
  LaunchStats<double, double>(rows, stats, static_cast<cudaStream_t>(stream));
  CheckCuda(cudaGetLastError(), "row statistics on the GPU");
}

template <>
void RowStatsCuda(const LogitRows& rows, const RowStats<float>& stats, void* stream) {
  if (rows.rows == 0) return;
  const auto s = static_cast<cudaStream_t>(stream);
  if (rows.type == ElementType::kBFloat16) {
    LaunchStats<float, __nv_bfloat16>(rows, stats, s);
  } else if (rows.type == ElementType::kHalf) {
    LaunchStats<float, __half>(rows, stats, s);
  } else {
    LaunchStats<float, float>(rows, stats, s);
  }
  CheckCuda(cudaGetLastError(), "row statistics on the GPU");
}

template <>
void RowGradientCuda(const LogitRows& rows, const RowGradient<double>& parts, void* stream) {
  if (rows.rows == 0) return;
  LaunchGradient<double, double>(rows, parts, static_cast<cudaStream_t>(stream));
  CheckCuda(cudaGetLastError(), "row gradients on the GPU");
}

template <>
void RowGradientCuda(const LogitRows& rows, const RowGradient<float>& parts, void* stream) {
  if (rows.rows == 0) return;
  const auto s = static_cast<cudaStream_t>(stream);
  if (rows.type == ElementType::kBFloat16) {
    LaunchGradient<float, __nv_bfloat16>(rows, parts, s);
  } else if (rows.type == ElementType::kHalf) {
    LaunchGradient<float, __half>(rows, parts, s);
  } else {
    LaunchGradient<float, float>(rows, parts, s);
  }
  CheckCuda(cudaGetLastError(), "row gradients on the GPU");
}

}  // namespace augur
