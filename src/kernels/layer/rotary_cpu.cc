#include <algorithm>
#include <vector>

#include "kernels/layer/norm_kernels.h"
#include "kernels/layer/rotary.h"
#include "kernels/layer/row_chunks.h"

namespace augur {
namespace {

// The norms' weights as floats; null where the family has none.
class NormWeights {
 public:
  template <typename T>
  explicit NormWeights(const RotaryInput<T>& in) : dim_(in.head_dim) {
    if (in.q_norm == nullptr) return;
    for (int d = 0; d < dim_; ++d) values_.push_back(static_cast<float>(in.q_norm[d]));
    for (int d = 0; d < dim_; ++d) values_.push_back(static_cast<float>(in.k_norm[d]));
  }
  const float* q() const { return values_.empty() ? nullptr : values_.data(); }
  const float* k() const { return values_.empty() ? nullptr : values_.data() + dim_; }

 private:
  int dim_;
  std::vector<float> values_;
};

}  // namespace

template <typename T>
void RotaryForwardCpu(const RotaryInput<T>& in, T* rotated) {
  const NormWeights norms(in);
  const NormKernels<T>& kernels = NormKernelsOf<T>();
  ShareRows(in.tokens, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(ScratchRow(in.head_dim));
    kernels.rotate(begin, end, in, norms.q(), norms.k(), rotated, scratch.data());
  });
}

template <typename T>
void RotaryBackwardCpu(const RotaryInput<T>& in, T* grad, float* grad_norms) {
  const NormWeights norms(in);
  const NormKernels<T>& kernels = NormKernelsOf<T>();
  std::vector<float> sums(2 * in.head_dim);
  SumOverRowChunks(in.tokens, 2 * in.head_dim, sums.data(), [&](int64_t begin, int64_t end, float* partial) {
    std::vector<float> scratch(2 * ScratchRow(in.head_dim));
    kernels.rotate_backward(begin, end, in, norms.q(), norms.k(), grad, partial, scratch.data());
  });
  if (in.q_norm != nullptr) std::copy(sums.begin(), sums.end(), grad_norms);
}

#define AUGUR_INSTANTIATE(T)                                    \
  template void RotaryForwardCpu<T>(const RotaryInput<T>&, T*); \
  template void RotaryBackwardCpu<T>(const RotaryInput<T>&, T*, float*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
