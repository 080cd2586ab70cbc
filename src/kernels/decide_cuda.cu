#include <type_traits>

#include "kernels/cuda_check.h"
#include "kernels/decide.h"
#include "kernels/decide_math.h"

namespace augur {
namespace {

constexpr int kLanes = 4;  // threads per token: five or six columns each at K = 20
constexpr int kThreads = 128;

__device__ float SumLanes(float x) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset, kLanes);
  return x;
}

template <typename R, typename O>
__device__ void Write(const Decided<R>& decided, int64_t t, const DecideOutput<O>& out) {
  out.ratio[t] = static_cast<O>(decided.ratio);
  out.divergence[t] = static_cast<O>(decided.divergence);
  out.direction[t] = static_cast<O>(decided.direction);
  out.flags[t] = decided.flags;
}

// Sums of one token over kLanes threads; every lane gets the total.
template <bool kTv>
__device__ SupportSums<float> SumToken(const float* behaviour, const float* policy, int columns, int lane) {
  SupportSums<float> sums;
  for (int c = lane; c < columns; c += kLanes) {
    const float b = behaviour[c], p = policy[c];
    if (b != -INFINITY) Accumulate<kTv>(&sums, b, p, expf(b), expf(p));
  }
  sums.count = SumLanes(sums.count);
  sums.mu = SumLanes(sums.mu);
  sums.pi = SumLanes(sums.pi);
  sums.square = SumLanes(sums.square);
  if constexpr (kTv) {
    sums.gap = SumLanes(sums.gap);
    sums.signed_pi = SumLanes(sums.signed_pi);
    sums.signed_square = SumLanes(sums.signed_square);
  } else {
    sums.kl = SumLanes(sums.kl);
    sums.coupling = SumLanes(sums.coupling);
  }
  return sums;
}

template <bool kTv>
__global__ void __launch_bounds__(kThreads)
    DecideKernel(MaskRule rule, DecideInput<float> in, DecideOutput<float> out) {
  const int lane = threadIdx.x % kLanes;
  const int64_t wanted = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  const int64_t t =
      wanted < in.tokens ? wanted : in.tokens - 1;  // shuffles need every lane: idle ones repeat a token
  const float* behaviour = in.behaviour + t * in.columns;
  const float* policy = in.policy + t * in.columns;
  const SupportSums<float> sums = SumToken<kTv>(behaviour, policy, in.columns, lane);
  if (lane != 0 || wanted >= in.tokens) return;
  const float log_mu = behaviour[0], log_pi = policy[0];
  if (log_mu == -INFINITY) {
    Write(Decided<float>(), t, out);
    return;
  }
  const SampledToken<float> y{log_mu, log_pi, expf(log_mu), expf(log_pi)};
  const Decided<float> fast = DecideToken<kTv>(rule, sums, y, FactsOf<float>(in, t));
  if (fast.delicate) {
    Write(DecideTokenInDouble<kTv>(rule, in, t), t, out);
  } else {
    Write(fast, t, out);
  }
}

// Double inputs are for tests: one thread per token.
template <bool kTv>
__global__ void __launch_bounds__(kThreads)
    DecideKernel(MaskRule rule, DecideInput<double> in, DecideOutput<double> out) {
  const int64_t t = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  if (t >= in.tokens || threadIdx.x % kLanes != 0) return;
  const bool missing = in.behaviour[t * in.columns] == -INFINITY;
  Write(missing ? Decided<double>() : DecideTokenInDouble<kTv>(rule, in, t), t, out);
}

}  // namespace

template <typename T>
void DecideCuda(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out, void* stream) {
  if (in.tokens == 0) return;
  const auto blocks = static_cast<unsigned>((in.tokens * kLanes + kThreads - 1) / kThreads);
  const auto s = static_cast<cudaStream_t>(stream);
  if (rule.proximity == Proximity::kTv) {
    DecideKernel<true><<<blocks, kThreads, 0, s>>>(rule, in, out);
  } else {
    DecideKernel<false><<<blocks, kThreads, 0, s>>>(rule, in, out);
  }
  CheckCuda(cudaGetLastError(), "token decisions on the GPU");
}

template void DecideCuda(const MaskRule&, const DecideInput<float>&, const DecideOutput<float>&, void*);
template void DecideCuda(const MaskRule&, const DecideInput<double>&, const DecideOutput<double>&, void*);

}  // namespace augur
