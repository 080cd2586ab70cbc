#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

#include "kernels/cuda_check.h"
#include "kernels/head/row_stats.h"
#include "kernels/head/row_stats_math.h"

namespace augur {
namespace {

constexpr const char* kGradients = "row gradients on the GPU";
constexpr size_t kPlainShared = 48 << 10;  // bytes that a kernel has without asking

constexpr int kThreads = 256, kBlocksPerSm = 4;
constexpr int kGroup = kSweepGroup;  // one byte of the support bitmap

constexpr int64_t kStride = kThreads * kGroup;
constexpr int kBatch = 4;                            // groups in flight per thread where a sweep writes
constexpr int kReadBatch = 2, kReadBlocksPerSm = 8;  // where it only reads

// A logit whose probability is 0, finite so that it may be multiplied by it. Below half of it none has any.
template <typename E>
constexpr float kNothing = -1e30f;
template <>
constexpr float kNothing<__half> = -65504.0f;

// softcap * tanh(logit / softcap); the temperature is left to the exponent.
template <typename T>
__device__ T Cap(T logit, T softcap) {
  return softcap > 0 ? softcap * tanh(logit / softcap) : logit;
}

// Eight consecutive elements of one row, loaded 16 bytes at a time where the row allows it.
template <typename T, typename E>
__device__ void LoadGroup(const E* row, int64_t index, int64_t vocab_size, bool aligned, T out[kGroup]) {
  if (aligned && index + kGroup <= vocab_size) {
    alignas(16) E raw[kGroup];
    constexpr int kVectors = kGroup * sizeof(E) / 16;
    for (int v = 0; v < kVectors; ++v) {
      reinterpret_cast<uint4*>(raw)[v] = reinterpret_cast<const uint4*>(row + index)[v];
    }
    for (int i = 0; i < kGroup; ++i) out[i] = static_cast<T>(raw[i]);
  } else {
    for (int i = 0; i < kGroup; ++i) {
      out[i] = index + i < vocab_size ? static_cast<T>(row[index + i]) : static_cast<T>(-INFINITY);
    }
  }
}

// Groups one stride apart; 16-byte loads, so the row must be aligned.
template <int kCount, typename E>
__device__ void LoadBatch(const E* first, E (&raw)[kCount][kGroup]) {
  constexpr int kVectors = kGroup * sizeof(E) / 16;
  for (int b = 0; b < kCount; ++b) {
    for (int v = 0; v < kVectors; ++v) {
      reinterpret_cast<uint4*>(raw[b])[v] = reinterpret_cast<const uint4*>(first + b * kStride)[v];
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

// Eight elements raised to at least kNothing, so that none is -inf; NaN stays. Two at a time where the type
// has instructions for it.
template <typename E>
__device__ void RaiseToNothing(E raw[kGroup]) {
  for (int i = 0; i < kGroup; ++i) {
    if (raw[i] < E(kNothing<E>)) raw[i] = kNothing<E>;
  }
}
__device__ void RaiseToNothing(__nv_bfloat16 raw[kGroup]) {
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(raw);
  const auto nothing = __float2bfloat162_rn(kNothing<__nv_bfloat16>);
  for (int i = 0; i < kGroup / 2; ++i) pairs[i] = __hmax2_nan(pairs[i], nothing);
}
__device__ void RaiseToNothing(__half raw[kGroup]) {
  auto* pairs = reinterpret_cast<__half2*>(raw);
  const auto nothing = __float2half2_rn(kNothing<__half>);
  for (int i = 0; i < kGroup / 2; ++i) pairs[i] = __hmax2_nan(pairs[i], nothing);
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

// A group of one row's capped logits, with those of the support taken out.
template <typename T, typename E>
__device__ void LoadCapped(const E* logits, int64_t index, int64_t vocab_size, bool aligned,
                           const uint8_t* bitmap, T softcap, T out[kGroup]) {
  LoadGroup(logits, index, vocab_size, aligned, out);
  const unsigned excluded = index < vocab_size ? bitmap[index / kGroup] : 0;
  if (softcap > 0) {
    for (int i = 0; i < kGroup; ++i) out[i] = index + i < vocab_size ? Cap(out[i], softcap) : out[i];
  }
  if (excluded == 0) return;
  for (int i = 0; i < kGroup; ++i) out[i] = (excluded >> i & 1) ? static_cast<T>(-INFINITY) : out[i];
}

// Takes the support out of the row by a bit per token, then sweeps.
template <typename T, typename E>
__device__ void SweepAround(const LogitRows& rows, const E* logits, const int32_t* support, uint32_t* bitmap,
                            ThreadSums<T>* mine) {
  const int words = static_cast<int>((rows.vocab_size + 31) / 32);
  for (int w = threadIdx.x; w < words; w += kThreads) bitmap[w] = 0;
  __syncthreads();
  for (int c = threadIdx.x; c < rows.columns; c += kThreads) {
    if (support[c] >= 0) atomicOr(&bitmap[support[c] / 32], 1u << (support[c] % 32));
  }
  __syncthreads();
  const bool aligned = IsAligned(logits);
  const auto* bytes = reinterpret_cast<const uint8_t*>(bitmap);
  const T softcap = static_cast<T>(rows.softcap);
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kGroup; j < rows.vocab_size; j += 2 * kStride) {
    T first[kGroup], second[kGroup];
    LoadCapped(logits, j, rows.vocab_size, aligned, bytes, softcap, first);
    LoadCapped(logits, j + kStride, rows.vocab_size, aligned, bytes, softcap, second);
    mine->Add(first);
    mine->Add(second);
  }
}

// The support's largest logit, which every warp finds for itself; without support some logit of the row.
template <typename T, typename E>
__device__ T LargestOfSupport(const LogitRows& rows, const E* logits, const int32_t* support,
                              const T* support_logits) {
  T top = -INFINITY;
  for (int c = threadIdx.x % 32; c < rows.columns; c += 32) {
    const T logit = support_logits[c];  // loaded while the id is
    if (support[c] >= 0) top = fmax(top, logit);
  }
  for (int offset = 16; offset > 0; offset /= 2) top = fmax(top, __shfl_xor_sync(0xffffffffu, top, offset));
  if (top > static_cast<T>(-INFINITY) || rows.vocab_size == 0) return top;
  return static_cast<T>(logits[0]);
}

// Overwrites the support with a logit that counts for nothing, so that sweeps need not ask.
template <typename T, typename E>
__device__ void OverwriteSupport(const LogitRows& rows, E* logits, const int32_t* support) {
  for (int c = threadIdx.x; c < rows.columns; c += kThreads) {
    if (support[c] >= 0) logits[support[c]] = static_cast<E>(static_cast<T>(kNothing<E>));
  }
  __syncthreads();
}

// Sums up what is measured from mine->max. Several groups are loaded before the first is used: the sweep is
// bound by memory.
template <bool kReplace, typename T, typename E>
__device__ void SweepFromReference(const LogitRows& rows, E* logits, ThreadSums<T>* mine) {
  constexpr int kCount = kReplace ? kBatch : kReadBatch;
  const bool aligned = IsAligned(logits);
  const T reference = mine->max;
  int64_t j = static_cast<int64_t>(threadIdx.x) * kGroup;
  for (; aligned && j + (kCount - 1) * kStride + kGroup <= rows.vocab_size; j += kCount * kStride) {
    alignas(16) E raw[kCount][kGroup];
    LoadBatch(logits + j, raw);
#pragma unroll
    for (int b = 0; b < kCount; ++b) {
      RaiseToNothing(raw[b]);
      T unnormalised[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) unnormalised[i] = mine->AddOne(static_cast<T>(raw[b][i]), reference);
      if constexpr (kReplace) StoreGroup(logits, j + b * kStride, rows.width, true, unnormalised);
    }
  }
  for (; j < rows.width; j += kStride) {
    T group[kGroup];
    LoadGroup(logits, j, rows.vocab_size, aligned, group);
    for (int i = 0; i < kGroup; ++i) group[i] = mine->AddAny(group[i], reference);
    if constexpr (kReplace) StoreGroup(logits, j, rows.width, aligned, group);
  }
}

// Sums up from the largest logit each thread has seen.
template <typename T, typename E>
__device__ void SweepFromLargest(const LogitRows& rows, const E* logits, ThreadSums<T>* mine) {
  const bool aligned = IsAligned(logits);
  for (int64_t j = static_cast<int64_t>(threadIdx.x) * kGroup; j < rows.vocab_size; j += kStride) {
    T group[kGroup];
    LoadGroup(logits, j, rows.vocab_size, aligned, group);
    mine->Add(group);
  }
}

// How a sweep keeps the support out, and what it leaves of the logits.
enum class Sweep {
  kAround,   // the support is looked up; logits stay
  kWithout,  // the support is overwritten, other logits stay
  kReplace,  // unnormalised probabilities take the logits' place
};

// Far enough below overflow that the threads' sums can be added.
template <typename T>
constexpr T kMostSquares = 1e35;

template <typename T, typename E, Sweep kSweep>
__global__ void __launch_bounds__(kThreads, kSweep == Sweep::kWithout ? kReadBlocksPerSm : kBlocksPerSm)
    StatsKernel(LogitRows rows, RowStats<T> out) {
  extern __shared__ uint32_t bitmap[];  // one bit per token of the vocabulary: is it in the support?
  __shared__ SoftmaxSums<T> warp_sums[kThreads / 32];
  const int64_t r = blockIdx.x;
  const E* logits = static_cast<const E*>(rows.logits) + r * rows.width;
  const int32_t* support = rows.support + r * rows.columns;
  const LogitScale<T> scale{static_cast<T>(1 / rows.temperature), static_cast<T>(rows.softcap)};

  const ThreadSums<T> nothing{
      static_cast<T>(kLog2E / rows.temperature),
      kSweep == Sweep::kAround ? static_cast<T>(-INFINITY) : static_cast<T>(kNothing<E>) / 2};
  ThreadSums<T> mine = nothing;
  if constexpr (kSweep == Sweep::kAround) {
    SweepAround(rows, logits, support, bitmap, &mine);
  } else {
    E* row = const_cast<E*>(logits);
    mine.max = LargestOfSupport(rows, logits, support, out.support_logits + r * rows.columns) * mine.to_power;
    OverwriteSupport<T>(rows, row, support);
    SweepFromReference<kSweep == Sweep::kReplace>(rows, row, &mine);
    if (__syncthreads_or(!(mine.square < kMostSquares<T>))) {
      if constexpr (kSweep == Sweep::kReplace) {
        if (threadIdx.x == 0) *out.overflowed = 1;
      } else {
        mine = nothing;
        SweepFromLargest(rows, logits, &mine);
      }
    }
  }
  const SoftmaxSums<T> sums = MergeWarp(mine.InNaturalUnits());
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
  if constexpr (kSweep == Sweep::kReplace) out.reference[r] = tail.max;
  out.log_sum_exp[r] = log_sum_exp;
  out.entropy[r] = log(all.sum) - all.weighted / all.sum;
  out.tail_mass[r] = tail.sum * tail_scale;
  out.tail_square[r] = tail.square * tail_scale * tail_scale;
}

// What one row's gradient is made of, in registers.
template <typename T>
struct RowTerms {
  LogitScale<T> scale;
  T upstream, log_sum_exp, entropy_weight, constant;

  __device__ T At(T log_pi, T sparse) const {
    const T pi = Exp2(log_pi * static_cast<T>(kLog2E));
    const T dense = pi * (constant + (entropy_weight != 0 && pi > 0 ? entropy_weight * log_pi : T(0)));
    return upstream * scale.Slope(log_pi + log_sum_exp) * (dense + sparse);
  }
};

template <typename T, typename E>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    GradientKernel(LogitRows rows, RowGradient<T> parts) {
  extern __shared__ uint8_t storage[];
  T* at_support = reinterpret_cast<T*>(storage);  // [columns]
  const int64_t r = parts.source ? parts.source[blockIdx.x] : blockIdx.x;
  const E* logits = static_cast<const E*>(rows.logits) + r * rows.width;
  E* gradient = static_cast<E*>(parts.gradient) + static_cast<int64_t>(blockIdx.x) * rows.width;
  const int32_t* support = rows.support + r * rows.columns;
  RowTerms<T> terms{{static_cast<T>(1 / rows.temperature), static_cast<T>(rows.softcap)},
                    parts.scale ? *parts.scale : T(1),
                    parts.log_sum_exp[r],
                    parts.entropy_weight ? parts.entropy_weight[r] : T(0),
                    parts.dense[r]};
  if (terms.entropy_weight != 0) terms.constant += terms.entropy_weight * parts.entropy[r];

  // The support is computed first: the gradient may overwrite the logits.
  bool live = parts.dense[r] != 0 || terms.entropy_weight != 0;
  for (int c = threadIdx.x; c < rows.columns; c += kThreads) {
    const T sparse = parts.SparseAt(r, c, rows.columns);
    live |= sparse != 0;
    if (support[c] < 0) continue;
    const T log_pi = parts.support_logprobs
                         ? parts.support_logprobs[r * rows.columns + c]
                         : terms.scale(static_cast<T>(logits[support[c]])) - terms.log_sum_exp;
    at_support[c] = terms.At(log_pi, sparse);
  }
  live = __syncthreads_or(live);

  const bool plain = terms.entropy_weight == 0 && terms.scale.softcap == 0;
  const T factor = terms.upstream * terms.scale.inverse_temperature * terms.constant;
  const bool aligned = IsAligned(logits) && IsAligned(gradient);
  const auto of_group = [&](int64_t j, T values[kGroup]) {
    for (int i = 0; i < kGroup; ++i) {
      if (plain) {
        const T log_pi = values[i] * terms.scale.inverse_temperature - terms.log_sum_exp;
        values[i] = factor * Exp2(log_pi * static_cast<T>(kLog2E));
      } else {
        values[i] =
            j + i < rows.vocab_size ? terms.At(terms.scale(values[i]) - terms.log_sum_exp, T(0)) : T(0);
      }
    }
  };
  int64_t j = static_cast<int64_t>(threadIdx.x) * kGroup;
  for (; live && aligned && j + (kBatch - 1) * kStride + kGroup <= rows.vocab_size; j += kBatch * kStride) {
    alignas(16) E raw[kBatch][kGroup];
    LoadBatch(logits + j, raw);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      T group[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) group[i] = static_cast<T>(raw[b][i]);
      of_group(j + b * kStride, group);
      StoreGroup(gradient, j + b * kStride, rows.width, true, group);
    }
  }
  for (; j < rows.width; j += kStride) {
    T group[kGroup] = {};
    if (live) {
      LoadGroup(logits, j, rows.vocab_size, aligned, group);
      of_group(j, group);
    }
    StoreGroup(gradient, j, rows.width, aligned, group);
  }
  __syncthreads();
  if (!live) return;
  for (int c = threadIdx.x; c < rows.columns; c += kThreads) {
    if (support[c] >= 0) gradient[support[c]] = static_cast<E>(at_support[c]);
  }
}

template <typename T, typename E>
void LaunchStats(const LogitRows& rows, const RowStats<T>& stats, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(rows.rows);
  if (stats.reference != nullptr) {
    StatsKernel<T, E, Sweep::kReplace><<<blocks, kThreads, 0, stream>>>(rows, stats);
    return;
  }
  if (stats.support_logits != nullptr && rows.softcap == 0) {
    StatsKernel<T, E, Sweep::kWithout><<<blocks, kThreads, 0, stream>>>(rows, stats);
    return;
  }
  const size_t bytes = (rows.vocab_size + 31) / 32 * 4;
  const auto kernel = StatsKernel<T, E, Sweep::kAround>;
  CheckCuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "row statistics on the GPU");
  kernel<<<blocks, kThreads, bytes, stream>>>(rows, stats);
}

template <typename T, typename E>
void LaunchGradient(const LogitRows& rows, const RowGradient<T>& parts, cudaStream_t stream) {
  const auto kernel = GradientKernel<T, E>;
  const size_t bytes = rows.columns * sizeof(T);
  if (bytes > kPlainShared) {
    int device = 0, most = 0;
    CheckCuda(cudaGetDevice(&device), kGradients);
    CheckCuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), kGradients);
    if (bytes > static_cast<size_t>(most)) {
      const std::string why = "support_ids has " + std::to_string(rows.columns) +
                              " columns, and this GPU takes " + std::to_string(most / sizeof(T)) + " at most";
      ThrowCudaError(kGradients, why.c_str());
    }
    CheckCuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
        kGradients);
  }
  kernel<<<static_cast<unsigned>(rows.rows), kThreads, bytes, stream>>>(rows, parts);
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
  CheckCuda(cudaGetLastError(), kGradients);
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
  CheckCuda(cudaGetLastError(), kGradients);
}

}  // namespace augur
