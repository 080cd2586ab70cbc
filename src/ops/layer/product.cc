#include "ops/layer/product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "kernels/simd/isa.h"

namespace augur {
namespace {

bool HasBfloat16() {
  const Isa isa = CurrentIsa();
  return isa == Isa::kAvx512Bf16 || isa == Isa::kAmx || isa == Isa::kBfmmla;
}

}  // namespace

bool MultipliesInFloat(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && !HasBfloat16();
}

at::Tensor Factor(const at::Tensor& x) { return MultipliesInFloat(x) ? x.to(at::kFloat) : x; }

at::Tensor Product(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(Factor(a), Factor(b)).to(a.scalar_type());
}

void ProductInto(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  const at::Tensor left = Factor(a), right = Factor(b);
  if (left.scalar_type() != out.scalar_type()) {
    out.copy_(bias.defined() ? at::addmm(Factor(bias), left, right) : at::mm(left, right));
  } else if (bias.defined()) {
    at::addmm_out(out, bias, left, right);
  } else {
    at::mm_out(out, left, right);
  }
}

}  // namespace augur
