#include <vector>

#include "kernels/layer/norm_kernels.h"
#include "kernels/layer/rms_norm.h"
#include "kernels/layer/row_chunks.h"

namespace augur {
namespace {

template <typename T>
std::vector<float> AsFloats(const T* from, int64_t width) {
  std::vector<float> values(width);
  for (int64_t i = 0; i < width; ++i) values[i] = static_cast<float>(from[i]);
  return values;
}

}  // namespace

template <typename T>
void RmsNormForwardCpu(int64_t rows, int64_t width, const T* x, const T* weight, float eps, T* y,
                       float* inverse) {
  const std::vector<float> scale = AsFloats(weight, width);
  const NormKernels<T>& kernels = NormKernelsOf<T>();
  ShareRows(rows, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(ScratchRow(width));
    kernels.norm(begin, end, width, x, scale.data(), eps, y, inverse, scratch.data());
  });
}

template <typename T>
void RmsNormBackwardCpu(int64_t rows, int64_t width, const T* x, const T* weight, const float* inverse,
                        const T* grad_y, T* grad_x, float* grad_weight) {
  const std::vector<float> scale = AsFloats(weight, width);
  const RmsNormBackwardRows<T> all{width, x, grad_y, scale.data(), inverse, grad_x};
  const NormKernels<T>& kernels = NormKernelsOf<T>();
  SumOverRowChunks(rows, width, grad_weight, [&](int64_t begin, int64_t end, float* partial) {
    std::vector<float> scratch(2 * ScratchRow(width));
    kernels.norm_backward(begin, end, all, partial, scratch.data());
  });
}

#define AUGUR_INSTANTIATE(T)                                                                            \
  template void RmsNormForwardCpu<T>(int64_t, int64_t, const T*, const T*, float, T*, float*);          \
  template void RmsNormBackwardCpu<T>(int64_t, int64_t, const T*, const T*, const float*, const T*, T*, \
                                      float*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
