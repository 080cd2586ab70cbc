#include "ops/fp8_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include "ops/device.h"

namespace augur {
namespace {

constexpr int64_t kUnit = 16;  // FP8 units take whole vectors of so many values

double Largest(at::ScalarType format) { return format == at::kFloat8_e4m3fn ? 448.0 : 57344.0; }

// With zeros behind each row up to a multiple of kUnit, which add nothing to a product.
at::Tensor PaddedRows(const at::Tensor& values) {
  const int64_t missing = (kUnit - values.size(1) % kUnit) % kUnit;
  if (missing == 0) return values.contiguous();
  // Padded as bytes: 0 is the same in every format.
  return at::constant_pad_nd(values.view(at::kByte), {0, missing}, 0).view(values.scalar_type());
}

}  // namespace

Fp8Matrix RoundToFp8(const at::Tensor& matrix, at::ScalarType format) {
  const at::Tensor largest = matrix.abs().max().to(at::kFloat);
  const at::Tensor scale = at::where(largest.eq(0), at::ones_like(largest), largest / Largest(format));
  return {(matrix.to(at::kFloat) / scale).to(format), scale};
}

Fp8Matrix Transposed(const Fp8Matrix& matrix) {
  // As bytes, which every device copies.
  return {matrix.values.view(at::kByte).t().contiguous().view(matrix.values.scalar_type()), matrix.scale};
}

at::Tensor Fp8Product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType type) {
  if (HasFp8Units(a.values) && b.values.size(0) % kUnit == 0 && type != at::kDouble) {
    const bool direct = type == at::kBFloat16 || type == at::kFloat;
    return at::_scaled_mm(PaddedRows(a.values), PaddedRows(b.values).t(), a.scale, b.scale,
                          /*bias=*/{}, /*scale_result=*/{}, direct ? type : at::kFloat)
        .to(type);
  }
  const at::Tensor product = at::mm(a.values.to(at::kFloat), b.values.to(at::kFloat).t());
  return (product * (a.scale * b.scale)).to(type);
}

}  // namespace augur
