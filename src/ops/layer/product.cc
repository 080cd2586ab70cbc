#include "ops/layer/product.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "base/round_up.h"
#include "kernels/simd/isa.h"

namespace augur {
namespace {

// Rows are padded up to a multiple of this.
constexpr int64_t kCommonRows = 64;
// Multiplications that take longer than the kernel for their shape does.
constexpr double kLargeProduct = 1e10;

struct Factors {
  at::Tensor a, b;
};

// a and b, whose tokens, a's rows or, where it is a transposed matrix, its columns, are padded.
Factors OfCommonShape(const at::Tensor& a, const at::Tensor& b) {
  if (!CompilesShapes(a)) return {a, b};
  if (a.stride(0) == 1 && a.stride(1) > 1) {
    return {RowsOfCommonShape(a.t(), b.size(1)).t(), RowsOfCommonShape(b, a.size(0))};
  }
  return {RowsOfCommonShape(a, b.size(1)), b};
}

bool HasBfloat16() {
  const Isa isa = CurrentIsa();
  return isa == Isa::kAvx512Bf16 || isa == Isa::kAmx || isa == Isa::kBfmmla;
}

}  // namespace

bool MultipliesInFloat(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && !HasBfloat16();
}

bool CompilesShapes(const at::Tensor& x) {
  const Isa isa = CurrentIsa();
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && (isa == Isa::kAvx512Bf16 || isa == Isa::kAmx);
}

at::Tensor RowsOfCommonShape(const at::Tensor& x, int64_t columns) {
  const int64_t rows = x.size(0), width = x.size(1), padded = RoundUp(rows, kCommonRows);
  const bool worth = static_cast<double>(padded * width) * static_cast<double>(columns) < kLargeProduct;
  if (padded == rows || !worth || !CompilesShapes(x)) return x;
  at::Tensor more = at::empty({padded, width}, x.options());
  more.narrow(0, 0, rows).copy_(x);
  more.narrow(0, rows, padded - rows).zero_();
  return more;
}

at::Tensor Factor(const at::Tensor& x) { return MultipliesInFloat(x) ? x.to(at::kFloat) : x; }

at::Tensor Product(const at::Tensor& a, const at::Tensor& b) {
  const Factors factors = OfCommonShape(Factor(a), Factor(b));
  return at::mm(factors.a, factors.b).narrow(0, 0, a.size(0)).to(a.scalar_type());
}

void ProductInto(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  const at::Tensor left = Factor(a), right = Factor(b);
  if (left.scalar_type() != out.scalar_type()) {
    out.copy_(bias.defined() ? at::addmm(Factor(bias), left, right) : at::mm(left, right));
    return;
  }
  if (bias.defined()) {
    at::addmm_out(out, bias, left, right);
    return;
  }
  const Factors factors = OfCommonShape(left, right);
  if (factors.a.size(0) == out.size(0)) {
    at::mm_out(out, factors.a, factors.b);
  } else {
    out.copy_(at::mm(factors.a, factors.b).narrow(0, 0, out.size(0)));
  }
}

}  // namespace augur
