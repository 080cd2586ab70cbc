#include <cstring>
#include <type_traits>

#include "kernels/cuda_check.h"
#include "kernels/head/decide.h"
#include "kernels/head/decide_math.h"
#include "mask/divergences.h"

namespace augur {
namespace {

constexpr int kTokens = 64;  // of one block
constexpr int64_t kFewTokens =
    32768;  // up to here four threads share a token: there are too few to fill the GPU
constexpr size_t kMostShared = 96 << 10;

template <typename R, typename O>
__device__ void Write(const Decided<R>& decided, int64_t t, const DecideOutput<O>& out) {
  out.ratio[t] = static_cast<O>(decided.ratio);
  out.divergence[t] = static_cast<O>(decided.divergence);
  out.direction[t] = static_cast<O>(decided.direction);
  if (out.coefficient) out.coefficient[t] = static_cast<O>(decided.coefficient);
  out.flags[t] = decided.flags;
}

// Copies a block's rows, which are contiguous, into shared memory, 16 bytes at a time.
__device__ void Stage(const float* from, int count, float* to) {
  const int threads = static_cast<int>(blockDim.x);
  const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
  const int vectors = aligned ? count / 4 : 0;
  for (int i = threadIdx.x; i < vectors; i += threads) {
    reinterpret_cast<float4*>(to)[i] = reinterpret_cast<const float4*>(from)[i];
  }
  for (int i = vectors * 4 + threadIdx.x; i < count; i += threads) to[i] = from[i];
}

template <int kLanes>
__device__ float SumLanes(float x) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset, kLanes);
  return x;
}

// Adds up sums, which are nothing but floats, over kLanes neighbouring threads; each gets the totals.
template <int kLanes, typename D>
__device__ SupportSums<D, float> SumLanes(const SupportSums<D, float>& sums) {
  if constexpr (kLanes == 1) return sums;
  constexpr int kMembers = sizeof(sums) / sizeof(float);
  static_assert(std::is_trivially_copyable_v<SupportSums<D, float>>);
  float member[kMembers];
  memcpy(member, &sums, sizeof(sums));
#pragma unroll
  for (int i = 0; i < kMembers; ++i) member[i] = SumLanes<kLanes>(member[i]);
  SupportSums<D, float> total;
  memcpy(&total, member, sizeof(total));
  return total;
}

// The sums of one token over kLanes threads.
template <typename D, int kLanes>
__device__ SupportSums<D, float> SumToken(const float* behaviour, const float* policy, int columns,
                                          int lane) {
  SupportSums<D, float> sums;
#pragma unroll 6
  for (int c = lane; c < columns; c += kLanes) {
    const float b = behaviour[c], p = policy[c];
    if (b == -INFINITY) continue;
    sums.count += 1;
    sums.Add({b, p, __expf(b), __expf(p)});
  }
  return SumLanes<kLanes>(sums);
}

// kLanes threads per token. With `staged`, rows pass through shared memory so that they are read from device
// memory in whole lines; an odd number of columns, such as K + 1 = 21, then also meets no bank conflict.
template <typename D, int kLanes>
__global__ void __launch_bounds__(kTokens* kLanes)
    DecideKernel(MaskRule rule, DecideInput<float> in, DecideOutput<float> out, bool staged) {
  extern __shared__ float4 shared[];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTokens;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kTokens), in.tokens - begin));
  const float* behaviour = in.behaviour + begin * in.columns;
  const float* policy = in.policy + begin * in.columns;
  if (staged) {
    float* block = reinterpret_cast<float*>(shared);
    Stage(behaviour, rows * in.columns, block);
    Stage(policy, rows * in.columns, block + kTokens * in.columns);
    behaviour = block;
    policy = block + kTokens * in.columns;
    __syncthreads();
  }
  const int mine = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int row = min(mine, rows - 1);  // shuffles need every lane: idle ones repeat a token
  behaviour += row * in.columns;
  policy += row * in.columns;
  const SupportSums<D, float> sums = SumToken<D, kLanes>(behaviour, policy, in.columns, lane);
  if (lane != 0 || mine >= rows) return;
  const int64_t t = begin + row;
  const float log_mu = behaviour[0], log_pi = policy[0];
  if (log_mu == -INFINITY) {
    Write(Decided<float>(), t, out);
    return;
  }
  const Atom<float> y{log_mu, log_pi, __expf(log_mu), __expf(log_pi)};
  const Decided<float> fast = DecideToken<D>(rule, sums, y, FactsOf<float>(in, t));
  if (fast.delicate) {
    Write(DecideTokenInDouble<D>(rule, in, t), t, out);
  } else {
    Write(fast, t, out);
  }
}

// Double inputs are for tests.
template <typename D, int>
__global__ void __launch_bounds__(kTokens)
    DecideKernel(MaskRule rule, DecideInput<double> in, DecideOutput<double> out, bool) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kTokens + threadIdx.x;
  if (t >= in.tokens) return;
  const bool missing = in.behaviour[t * in.columns] == -INFINITY;
  Write(missing ? Decided<double>() : DecideTokenInDouble<D>(rule, in, t), t, out);
}

template <typename D, int kLanes, typename T>
void Launch(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((in.tokens + kTokens - 1) / kTokens);
  const size_t wanted = 2 * sizeof(float) * kTokens * in.columns;
  const bool staged = std::is_same_v<T, float> && wanted <= kMostShared;
  void (*kernel)(MaskRule, DecideInput<T>, DecideOutput<T>, bool) = DecideKernel<D, kLanes>;
  if (staged && wanted > (48 << 10)) {
    CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared),
              "token decisions on the GPU");
  }
  kernel<<<blocks, kTokens * kLanes, staged ? wanted : 0, stream>>>(rule, in, out, staged);
  CheckCuda(cudaGetLastError(), "token decisions on the GPU");
}

}  // namespace

template <typename T>
void DecideCuda(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out, void* stream) {
  if (in.tokens == 0) return;
  const auto s = static_cast<cudaStream_t>(stream);
  WithDivergence(rule.proximity, [&]<typename D>(D) {
    if (std::is_same_v<T, float> && in.tokens <= kFewTokens) {
      Launch<D, 4>(rule, in, out, s);
    } else {
      Launch<D, 1>(rule, in, out, s);
    }
  });
}

template void DecideCuda(const MaskRule&, const DecideInput<float>&, const DecideOutput<float>&, void*);
template void DecideCuda(const MaskRule&, const DecideInput<double>&, const DecideOutput<double>&, void*);

}  // namespace augur
