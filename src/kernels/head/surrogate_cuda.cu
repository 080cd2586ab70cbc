#include "kernels/cuda_check.h"
#include "kernels/head/surrogate.h"
#include "kernels/head/surrogate_math.h"

namespace augur {
namespace {

constexpr int kThreads = 256;
constexpr int kSumThreads = 512;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    SurrogateKernel(LossTerms terms, SurrogateInput<T> in, SurrogateOutput<T> out) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (t < in.tokens) WriteTerms(terms, in, out, t);
}

// One block, so that the order of addition never changes.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    SumsKernel(MaskRule rule, SurrogateInput<T> in, const T* loss, double* sums) {
  __shared__ double partial[kDecisionSums][kSumThreads / 32];
  double mine[kDecisionSums] = {};
  for (int64_t t = threadIdx.x; t < in.tokens; t += kSumThreads) AddToSums(rule, in, loss, t, mine);
  for (int s = 0; s < kDecisionSums; ++s) {
    double x = mine[s];
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    if (threadIdx.x % 32 == 0) partial[s][threadIdx.x / 32] = x;
  }
  __syncthreads();
  if (threadIdx.x >= kDecisionSums) return;
  double total = 0;
  for (int w = 0; w < kSumThreads / 32; ++w) total += partial[threadIdx.x][w];
  sums[threadIdx.x] = total;
}

}  // namespace

template <typename T>
void SurrogateCuda(const LossTerms& terms, const SurrogateInput<T>& in, const SurrogateOutput<T>& out,
                   void* stream) {
  if (in.tokens == 0) return;
  const auto blocks = static_cast<unsigned>((in.tokens + kThreads - 1) / kThreads);
  SurrogateKernel<T><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(terms, in, out);
  CheckCuda(cudaGetLastError(), "policy loss on the GPU");
}

template <typename T>
void DecisionSumsCuda(const MaskRule& rule, const SurrogateInput<T>& in, const T* loss, double* sums,
                      void* stream) {
  SumsKernel<T><<<1, kSumThreads, 0, static_cast<cudaStream_t>(stream)>>>(rule, in, loss, sums);
  CheckCuda(cudaGetLastError(), "decision metrics on the GPU");
}

template void SurrogateCuda(const LossTerms&, const SurrogateInput<float>&, const SurrogateOutput<float>&,
                            void*);
template void SurrogateCuda(const LossTerms&, const SurrogateInput<double>&, const SurrogateOutput<double>&,
                            void*);
template void DecisionSumsCuda(const MaskRule&, const SurrogateInput<float>&, const float*, double*, void*);
template void DecisionSumsCuda(const MaskRule&, const SurrogateInput<double>&, const double*, double*, void*);

}  // namespace augur
