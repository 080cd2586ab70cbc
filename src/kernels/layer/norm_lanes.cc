#include "kernels/layer/norm_kernels.h"
#include "kernels/layer/rms_norm_row.h"
#include "kernels/simd/float_lanes.h"

namespace augur {
inline namespace AUGUR_LANES {
namespace {

static_assert(kFloats <= kRowSlack);

template <typename T>
void Load(const T* from, int64_t width, float* to) {
  for (int64_t i = 0; i < width; i += kFloats) StoreFloats(LoadLanes(from + i, width - i), to + i);
}

template <typename T>
void Store(const float* from, int64_t width, T* to) {
  for (int64_t i = 0; i < width; i += kFloats) StoreLanes(LoadFloats(from + i), to + i, width - i);
}

template <typename T>
void Norm(int64_t begin, int64_t end, int64_t width, const T* x, const float* weight, float eps, T* y,
          float* inverse, float* row) {
  for (int64_t r = begin; r < end; ++r) {
    Load(x + r * width, width, row);
    inverse[r] = InverseRms(row, width, eps);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) row[i] = row[i] * inverse[r] * weight[i];
    Store(row, width, y + r * width);
  }
}

template <typename T>
void NormBackward(int64_t begin, int64_t end, const RmsNormBackwardRows<T>& rows, float* partial,
                  float* scratch) {
  const int64_t width = rows.width;
  float *row = scratch, *grad = row + width + kRowSlack;
  for (int64_t r = begin; r < end; ++r) {
    Load(rows.x + r * width, width, row);
    Load(rows.grad_y + r * width, width, grad);
    RmsNormRowBackward(width, row, rows.weight, rows.inverse[r], grad, grad, partial);
    Store(grad, width, rows.grad_x + r * width);
  }
}

// Turns each pair by its angle; `direction` 1 turns forward, -1 back.
void Turn(float* head, int half, const float* cos, const float* sin, float direction) {
#pragma omp simd
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[half + i], s = direction * sin[i];
    head[i] = a * cos[i] - b * s;
    head[half + i] = b * cos[i] + a * s;
  }
}

template <typename T>
void Rotate(int64_t begin, int64_t end, const RotaryInput<T>& in, const float* q_norm, const float* k_norm,
            T* rotated, float* head) {
  const int dim = in.head_dim, half = dim / 2, turned = in.heads + in.kv_heads;
  const int64_t stride = static_cast<int64_t>(turned + in.kv_heads) * dim;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t angle = static_cast<int64_t>(in.positions[t]) * half;
    for (int h = 0; h < turned; ++h) {
      Load(in.qkv + t * stride + static_cast<int64_t>(h) * dim, dim, head);
      if (q_norm != nullptr) {
        const float* weight = h < in.heads ? q_norm : k_norm;
        const float inverse = InverseRms(head, dim, in.eps);
#pragma omp simd
        for (int d = 0; d < dim; ++d) head[d] *= inverse * weight[d];
      }
      Turn(head, half, in.cos + angle, in.sin + angle, 1.0f);
      Store(head, dim, rotated + (t * turned + h) * dim);
    }
  }
}

template <typename T>
void RotateBackward(int64_t begin, int64_t end, const RotaryInput<T>& in, const float* q_norm,
                    const float* k_norm, T* grad, float* partial, float* scratch) {
  const int dim = in.head_dim, half = dim / 2, turned = in.heads + in.kv_heads;
  const int64_t stride = static_cast<int64_t>(turned + in.kv_heads) * dim;
  float *head = scratch, *x = head + dim + kRowSlack;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t angle = static_cast<int64_t>(in.positions[t]) * half;
    for (int h = 0; h < turned; ++h) {
      const int64_t offset = t * stride + static_cast<int64_t>(h) * dim;
      Load(grad + offset, dim, head);
      Turn(head, half, in.cos + angle, in.sin + angle, -1.0f);
      if (q_norm != nullptr) {
        const bool query = h < in.heads;
        Load(in.qkv + offset, dim, x);
        RmsNormRowBackward(dim, x, query ? q_norm : k_norm, InverseRms(x, dim, in.eps), head, head,
                           partial + (query ? 0 : dim));
      }
      Store(head, dim, grad + offset);
    }
  }
}

}  // namespace
}  // namespace AUGUR_LANES

extern const NormKernels<float> AUGUR_LANES_TABLE(kFloatNorms) = {Norm<float>, NormBackward<float>,
                                                                  Rotate<float>, RotateBackward<float>};
extern const NormKernels<BFloat16> AUGUR_LANES_TABLE(kBf16Norms) = {
    Norm<BFloat16>, NormBackward<BFloat16>, Rotate<BFloat16>, RotateBackward<BFloat16>};

}  // namespace augur
