#include "ops/large_product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

namespace augur {

void LargeProduct(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (out.is_cuda() && LargeProductCuda(out, a, b, add)) return;
  at::Tensor result = out;
  if (out.scalar_type() != a.scalar_type()) {
    add ? at::addmm_out(result, out, a, b, out.scalar_type()) : at::mm_out(result, a, b, out.scalar_type());
  } else {
    add ? at::addmm_out(result, out, a, b) : at::mm_out(result, a, b);
  }
}

}  // namespace augur
