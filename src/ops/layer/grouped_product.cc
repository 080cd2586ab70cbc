#include "ops/layer/grouped_product.h"

#include <ATen/ops/_grouped_mm.h>

#include "kernels/layer/zero_groups.h"
#include "ops/device.h"
#include "ops/typed_data.h"

namespace augur {

bool HasGroupedProduct(const at::Tensor& rows, const at::Tensor& matrices) {
  return HasGroupedProducts(rows) && rows.scalar_type() == at::kBFloat16 && matrices.size(1) % 8 == 0 &&
         matrices.size(2) % 8 == 0;
}

at::Tensor GroupedWeightGradient(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& ends) {
  const at::Tensor gradient = at::_grouped_mm(grad.t(), rows, ends).contiguous();
  // CUTLASS's kernels for compute capability 10 leave a group without rows as the memory was
  // (NVIDIA/cutlass#2674).
  ZeroEmptyGroupsCuda(gradient.size(0), static_cast<int64_t>(gradient[0].nbytes()), ConstData<int32_t>(ends),
                      gradient.mutable_data_ptr(), CurrentStream(gradient));
  return gradient;
}

}  // namespace augur
