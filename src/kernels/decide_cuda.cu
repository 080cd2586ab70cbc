#include "kernels/cuda_check.h"
#include "kernels/decide.h"
#include "kernels/decide_math.h"

namespace augur {
namespace {

constexpr int kLanes = 8;  // threads per token: three columns each at K = 20
constexpr int kThreads = 128;

__device__ double SumLanes(double x) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset, kLanes);
  return x;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    DecideKernel(MaskRule rule, DecideInput<T> in, DecideOutput<T> out) {
  const int lane = threadIdx.x % kLanes;
  const int64_t wanted = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  const int64_t t =
      wanted < in.tokens ? wanted : in.tokens - 1;  // idle groups follow the last token: shuffles need all
  const T* behaviour = in.behaviour + t * in.columns;
  const T* policy = in.policy + t * in.columns;

  SupportSums sums;
  for (int c = lane; c < in.columns; c += kLanes) {
    const T b = behaviour[c], p = policy[c];
    if (b == static_cast<T>(-INFINITY)) continue;
    Accumulate(&sums, b, p, exp(static_cast<double>(b)), exp(static_cast<double>(p)));
  }
  sums = {SumLanes(sums.count),  SumLanes(sums.mu),        SumLanes(sums.pi),
          SumLanes(sums.kl),     SumLanes(sums.gap),       SumLanes(sums.coupling),
          SumLanes(sums.square), SumLanes(sums.signed_pi), SumLanes(sums.signed_square)};
  if (lane != 0 || wanted >= in.tokens) return;

  Decided decided;
  if (behaviour[0] != static_cast<T>(-INFINITY)) {
    const double log_mu = behaviour[0], log_pi = policy[0];
    const double square = in.tail_square ? static_cast<double>(in.tail_square[t]) : 0;
    const double tail = in.policy_tail ? static_cast<double>(in.policy_tail[t]) : 0;
    decided = DecideToken(rule, sums, {log_mu, log_pi, exp(log_mu), exp(log_pi)}, in.advantage[t],
                          static_cast<double>(in.vocab_size), in.tail_square ? &square : nullptr,
                          in.policy_tail ? &tail : nullptr);
  }
  out.ratio[t] = static_cast<T>(decided.ratio);
  out.divergence[t] = static_cast<T>(decided.divergence);
  out.direction[t] = static_cast<T>(decided.direction);
  out.flags[t] = decided.flags;
}

}  // namespace

template <typename T>
void DecideCuda(const MaskRule& rule, const DecideInput<T>& in, const DecideOutput<T>& out, void* stream) {
  if (in.tokens == 0) return;
  const auto blocks = static_cast<unsigned>((in.tokens * kLanes + kThreads - 1) / kThreads);
  DecideKernel<T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(rule, in, out);
  CheckCuda(cudaGetLastError(), "token decisions on the GPU");
}

template void DecideCuda(const MaskRule&, const DecideInput<float>&, const DecideOutput<float>&, void*);
template void DecideCuda(const MaskRule&, const DecideInput<double>&, const DecideOutput<double>&, void*);

}  // namespace augur
