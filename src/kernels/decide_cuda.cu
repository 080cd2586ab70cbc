#include <type_traits>

#include "kernels/cuda_check.h"
#include "kernels/decide.h"
#include "kernels/decide_math.h"

namespace augur {
namespace {

constexpr int kTokens = 64;  // tokens, and threads, of one block
constexpr size_t kMostShared = 96 << 10;

template <typename R, typename O>
__device__ void Write(const Decided<R>& decided, int64_t t, const DecideOutput<O>& out) {
  out.ratio[t] = static_cast<O>(decided.ratio);
  out.divergence[t] = static_cast<O>(decided.divergence);
  out.direction[t] = static_cast<O>(decided.direction);
  out.flags[t] = decided.flags;
}

// Copies a block's rows, which are contiguous, into shared memory, 16 bytes at a time.
__device__ void Stage(const float* from, int count, float* to) {
  const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
  const int vectors = aligned ? count / 4 : 0;
  for (int i = threadIdx.x; i < vectors; i += kTokens) {
    reinterpret_cast<float4*>(to)[i] = reinterpret_cast<const float4*>(from)[i];
  }
  for (int i = vectors * 4 + threadIdx.x; i < count; i += kTokens) to[i] = from[i];
}

// One thread per token. With `staged`, rows pass through shared memory so that they are read from device
// memory in whole lines; an odd number of columns, such as K + 1 = 21, then also meets no bank conflict.
template <bool kTv>
__global__ void __launch_bounds__(kTokens)
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
  if (static_cast<int>(threadIdx.x) >= rows) return;
  const int64_t t = begin + threadIdx.x;
  behaviour += threadIdx.x * in.columns;
  policy += threadIdx.x * in.columns;
  const float log_mu = behaviour[0], log_pi = policy[0];
  if (log_mu == -INFINITY) {
    Write(Decided<float>(), t, out);
    return;
  }
  SupportSums<float> sums;
#pragma unroll 7
  for (int c = 0; c < in.columns; ++c) {
    const float b = behaviour[c], p = policy[c];
    if (b != -INFINITY) Accumulate<kTv>(&sums, b, p, __expf(b), __expf(p));
  }
  const SampledToken<float> y{log_mu, log_pi, __expf(log_mu), __expf(log_pi)};
  const Decided<float> fast = DecideToken<kTv>(rule, sums, y, FactsOf<float>(in, t));
  if (fast.delicate) {
    Write(DecideTokenInDouble<kTv>(rule, in, t), t, out);
  } else {
    Write(fast, t, out);
  }
}

// Double inputs are for tests.
template <bool kTv>
__global__ void __launch_bounds__(kTokens)
    DecideKernel(MaskRule rule, DecideInput<double> in, DecideOutput<double> out, bool) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kTokens + threadIdx.x;
  if (t >= in.tokens) return;
  const bool missing = in.behaviour[t * in.columns] == -INFINITY;
  Write(missing ? Decided<double>() : DecideTokenInDouble<kTv>(rule, in, t), t, out);
}

template <bool kTv, typename T>
void Launch(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((in.tokens + kTokens - 1) / kTokens);
  const size_t wanted = 2 * sizeof(float) * kTokens * in.columns;
  const bool staged = std::is_same_v<T, float> && wanted <= kMostShared;
  void (*kernel)(MaskRule, DecideInput<T>, DecideOutput<T>, bool) = DecideKernel<kTv>;
  if (staged && wanted > (48 << 10)) {
    CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared),
              "token decisions on the GPU");
  }
  kernel<<<blocks, kTokens, staged ? wanted : 0, stream>>>(rule, in, out, staged);
  CheckCuda(cudaGetLastError(), "token decisions on the GPU");
}

}  // namespace

template <typename T>
void DecideCuda(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out, void* stream) {
  if (in.tokens == 0) return;
  if (rule.proximity == Proximity::kTv) {
    Launch<true>(rule, in, out, static_cast<cudaStream_t>(stream));
  } else {
    Launch<false>(rule, in, out, static_cast<cudaStream_t>(stream));
  }
}

template void DecideCuda(const MaskRule&, const DecideInput<float>&, const DecideOutput<float>&, void*);
template void DecideCuda(const MaskRule&, const DecideInput<double>&, const DecideOutput<double>&, void*);

}  // namespace augur
