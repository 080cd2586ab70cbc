#include <vector>

#include "kernels/layer/rms_norm.h"
#include "kernels/layer/rms_norm_row.h"
#include "kernels/layer/row_chunks.h"

namespace augur {
namespace {

template <typename T>
void Load(const T* from, int64_t width, float* to) {
  for (int64_t i = 0; i < width; ++i) to[i] = static_cast<float>(from[i]);
}

}  // namespace

template <typename T>
void RmsNormForwardCpu(int64_t rows, int64_t width, const T* x, const T* weight, float eps, T* y,
                       float* inverse) {
#pragma omp parallel
  {
    std::vector<float> row(width);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
      Load(x + r * width, width, row.data());
      inverse[r] = InverseRms(row.data(), width, eps);
      T* to = y + r * width;
      for (int64_t i = 0; i < width; ++i) {
        to[i] = FromFloat<T>(row[i] * inverse[r] * static_cast<float>(weight[i]));
      }
    }
  }
}

template <typename T>
void RmsNormBackwardCpu(int64_t rows, int64_t width, const T* x, const T* weight, const float* inverse,
                        const T* grad_y, T* grad_x, float* grad_weight) {
  SumOverRowChunks(rows, width, grad_weight, [&](int64_t begin, int64_t end, float* partial) {
    std::vector<float> scratch(3 * width);
    float* row = scratch.data();
    float* grad = row + width;
    float* scale = grad + width;
    Load(weight, width, scale);
    for (int64_t r = begin; r < end; ++r) {
      Load(x + r * width, width, row);
      Load(grad_y + r * width, width, grad);
      RmsNormRowBackward(width, row, scale, inverse[r], grad, grad, partial);
      for (int64_t i = 0; i < width; ++i) grad_x[r * width + i] = FromFloat<T>(grad[i]);
    }
  });
}

#define AUGUR_INSTANTIATE(T)                                                                            \
  template void RmsNormForwardCpu<T>(int64_t, int64_t, const T*, const T*, float, T*, float*);          \
  template void RmsNormBackwardCpu<T>(int64_t, int64_t, const T*, const T*, const float*, const T*, T*, \
                                      float*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
