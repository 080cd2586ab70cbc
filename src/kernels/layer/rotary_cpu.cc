#include <vector>

#include "kernels/layer/rms_norm_row.h"
#include "kernels/layer/rotary.h"
#include "kernels/layer/row_chunks.h"

namespace augur {
namespace {

// The norm's weights as floats; all empty where the family has none.
struct NormWeights {
  template <typename T>
  explicit NormWeights(const RotaryInput<T>& in) {
    if (in.q_norm == nullptr) return;
    for (int d = 0; d < in.head_dim; ++d) q.push_back(static_cast<float>(in.q_norm[d]));
    for (int d = 0; d < in.head_dim; ++d) k.push_back(static_cast<float>(in.k_norm[d]));
  }
  std::vector<float> q, k;
};

// Turns each pair by its angle; `direction` 1 turns forward, -1 back.
void Rotate(float* head, int half, const float* cos, const float* sin, float direction) {
#pragma omp simd
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[half + i], s = direction * sin[i];
    head[i] = a * cos[i] - b * s;
    head[half + i] = b * cos[i] + a * s;
  }
}

}  // namespace

template <typename T>
void RotaryForwardCpu(const RotaryInput<T>& in, T* rotated) {
  const int half = in.head_dim / 2, turned = in.heads + in.kv_heads;
  const int64_t in_stride = static_cast<int64_t>(turned + in.kv_heads) * in.head_dim;
  const NormWeights norms(in);
#pragma omp parallel
  {
    std::vector<float> head(in.head_dim);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < in.tokens; ++t) {
      const int64_t angle = static_cast<int64_t>(in.positions[t]) * half;
      for (int h = 0; h < turned; ++h) {
        const T* from = in.qkv + t * in_stride + static_cast<int64_t>(h) * in.head_dim;
        for (int d = 0; d < in.head_dim; ++d) head[d] = static_cast<float>(from[d]);
        if (in.q_norm != nullptr) {
          const std::vector<float>& weight = h < in.heads ? norms.q : norms.k;
          const float inverse = InverseRms(head.data(), in.head_dim, in.eps);
          for (int d = 0; d < in.head_dim; ++d) head[d] *= inverse * weight[d];
        }
        Rotate(head.data(), half, in.cos + angle, in.sin + angle, 1.0f);
        T* to = rotated + (t * turned + h) * in.head_dim;
        for (int d = 0; d < in.head_dim; ++d) to[d] = FromFloat<T>(head[d]);
      }
    }
  }
}

template <typename T>
void RotaryBackwardCpu(const RotaryInput<T>& in, T* grad, float* grad_norms) {
  const int half = in.head_dim / 2, turned = in.heads + in.kv_heads;
  const int64_t stride = static_cast<int64_t>(turned + in.kv_heads) * in.head_dim;
  const NormWeights norms(in);
  std::vector<float> sums(2 * in.head_dim);
  SumOverRowChunks(in.tokens, 2 * in.head_dim, sums.data(), [&](int64_t begin, int64_t end, float* partial) {
    std::vector<float> head(in.head_dim), x(in.head_dim);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t angle = static_cast<int64_t>(in.positions[t]) * half;
      for (int h = 0; h < turned; ++h) {
        const int64_t offset = t * stride + static_cast<int64_t>(h) * in.head_dim;
        for (int d = 0; d < in.head_dim; ++d) head[d] = static_cast<float>(grad[offset + d]);
        Rotate(head.data(), half, in.cos + angle, in.sin + angle, -1.0f);
        if (in.q_norm != nullptr) {
          const bool query = h < in.heads;
          for (int d = 0; d < in.head_dim; ++d) x[d] = static_cast<float>(in.qkv[offset + d]);
          RmsNormRowBackward(in.head_dim, x.data(), query ? norms.q.data() : norms.k.data(),
                             InverseRms(x.data(), in.head_dim, in.eps), head.data(), head.data(),
                             partial + (query ? 0 : in.head_dim));
        }
        for (int d = 0; d < in.head_dim; ++d) grad[offset + d] = FromFloat<T>(head[d]);
      }
    }
  });
  if (in.q_norm != nullptr) std::copy(sums.begin(), sums.end(), grad_norms);
}

#define AUGUR_INSTANTIATE(T)                                    \
  template void RotaryForwardCpu<T>(const RotaryInput<T>&, T*); \
  template void RotaryBackwardCpu<T>(const RotaryInput<T>&, T*, float*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
