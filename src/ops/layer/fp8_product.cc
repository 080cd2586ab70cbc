#include "ops/layer/fp8_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_grouped_mm.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <vector>

#include "kernels/layer/fp8_scale.h"
#include "kernels/layer/quantise_rows.h"
#include "kernels/layer/swiglu.h"
#include "ops/device.h"
#include "ops/layer/rms_norm.h"
#include "ops/layer/swiglu.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

constexpr int64_t kFp8Unit = 16;  // FP8 units take whole vectors of so many values

bool HasKernels(const at::Tensor& x) {
  return x.is_cuda() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

Fp8Rows RoundColumns(const at::Tensor& x, int64_t length, bool power_of_two) {
  std::vector<int64_t> sizes = x.sizes().vec();
  const int64_t rows = x.size(-2), width = x.size(-1);
  sizes[sizes.size() - 2] = width;
  sizes[sizes.size() - 1] = length;
  const Fp8Rows out = EmptyFp8Rows(x, sizes);
  const at::Tensor largest = at::empty_like(out.scale);
  WithElementType(x, [&]<typename T>(T) {
    const ColumnsToRound<T> columns{.batch = x.numel() / std::max<int64_t>(1, rows * width),
                                    .rows = rows,
                                    .width = width,
                                    .x = ConstData<T>(x),
                                    .length = length,
                                    .power_of_two = power_of_two};
    QuantiseColumnsCuda(columns, Data<uint8_t>(out.values), Data<float>(out.scale), Data<float>(largest),
                        CurrentStream(x));
  });
  return out;
}

}  // namespace

Fp8Rows EmptyFp8Rows(const at::Tensor& like, at::IntArrayRef sizes) {
  return {at::empty(sizes, like.options().dtype(at::kFloat8_e4m3fn)),
          at::empty(sizes.slice(0, sizes.size() - 1), like.options().dtype(at::kFloat))};
}

Fp8Rows RoundRowsToFp8(const at::Tensor& matrix) {
  const at::NoGradGuard no_grad;
  if (HasKernels(matrix)) {
    const at::Tensor x = matrix.contiguous();
    const Fp8Rows out = EmptyFp8Rows(x, x.sizes());
    WithElementType(x, [&]<typename T>(T) {
      QuantiseRowsCuda(out.scale.numel(), x.size(-1), ConstData<T>(x), Data<uint8_t>(out.values),
                       Data<float>(out.scale), CurrentStream(x));
    });
    return out;
  }
  const at::Tensor x = matrix.detach().to(at::kFloat);
  const at::Tensor largest = x.abs().amax({-1});
  const at::Tensor scale = at::where(largest.eq(0), at::ones_like(largest), largest / kLargestE4m3);
  return {(x / scale.unsqueeze(-1)).to(at::kFloat8_e4m3fn), scale};
}

Fp8Rows RoundColumnsToFp8(const at::Tensor& matrix) {
  const at::NoGradGuard no_grad;
  if (!HasKernels(matrix)) return RoundRowsToFp8(matrix.transpose(-1, -2));
  return RoundColumns(matrix.contiguous(), matrix.size(-2), /*power_of_two=*/false);
}

Fp8Rows RoundColumnsForSums(const at::Tensor& matrix) {
  const at::NoGradGuard no_grad;
  const int64_t whole = (matrix.size(-2) + kFp8Unit - 1) / kFp8Unit * kFp8Unit;
  return RoundColumns(matrix.contiguous(), whole, /*power_of_two=*/true);
}

Fp8Rows RmsNormToFp8(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::NoGradGuard no_grad;
  if (!HasKernels(x)) return RoundRowsToFp8(RmsNorm(x, weight, eps));
  Fp8Rows out;
  RmsNormForward(x.contiguous(), {}, weight, eps, &out);
  return out;
}

Fp8Rows SwigluToFp8(const at::Tensor& gate_up) {
  const at::NoGradGuard no_grad;
  if (!HasKernels(gate_up)) return RoundRowsToFp8(Swiglu(gate_up));
  const at::Tensor from = gate_up.contiguous();
  const int64_t rows = from.size(0), width = from.size(1) / 2;
  const Fp8Rows out = EmptyFp8Rows(from, {rows, width});
  WithElementType(from, [&]<typename T>(T) {
    SwigluForwardCuda<T>(rows, width, ConstData<T>(from), {}, nullptr, Data<uint8_t>(out.values),
                         Data<float>(out.scale), CurrentStream(from));
  });
  return out;
}

bool HasFp8Product(const at::Tensor& weight) {
  return HasFp8Units(weight) && weight.size(0) % kFp8Unit == 0 && weight.size(1) % kFp8Unit == 0;
}

at::Tensor Fp8ProductWithoutScales(const Fp8Rows& a, const Fp8Rows& b, at::ScalarType type) {
  const at::Tensor one = at::ones({}, a.scale.options());
  return at::_scaled_mm(a.values, b.values.t(), one, one, /*bias=*/{}, /*scale_result=*/{}, type,
                        /*use_fast_accum=*/true);
}

at::Tensor Fp8Product(const Fp8Rows& a, const Fp8Rows& b, const at::Tensor& bias, at::ScalarType type) {
  const at::Tensor a_scale = a.scale.unsqueeze(1), b_scale = b.scale.unsqueeze(0);
  const bool units = HasFp8Product(b.values);
  // Fast sums keep 14 bits, ten more than the factors have.
  if (units && type == at::kBFloat16) {
    return at::_scaled_mm(a.values, b.values.t(), a_scale, b_scale,
                          bias.defined() ? std::optional(bias) : std::nullopt, /*scale_result=*/{}, type,
                          /*use_fast_accum=*/true);
  }
  at::Tensor product;
  if (units && type == at::kFloat) {
    product = Fp8ProductWithoutScales(a, b, type);
  } else {
    product = at::mm(a.values.to(at::kFloat), b.values.to(at::kFloat).t());
  }
  product = product * a_scale * b_scale;
  return (bias.defined() ? product + bias : product).to(type);
}

bool HasFp8WeightGradient(const at::Tensor& grad, const at::Tensor& x) {
  return HasFp8Units(x) && x.scalar_type() == at::kBFloat16 && grad.size(1) % kFp8Unit == 0 &&
         x.size(1) % kFp8Unit == 0;
}

at::Tensor Fp8WeightGradient(const at::Tensor& grad, const at::Tensor& x) {
  return Fp8Product(RoundColumnsForSums(grad), RoundColumnsForSums(x), {}, x.scalar_type());
}

bool HasFp8GroupedProduct(const at::Tensor& weights) {
  return HasFp8GroupedProducts(weights) && weights.size(1) % kFp8Unit == 0 && weights.size(2) % kFp8Unit == 0;
}

at::Tensor Fp8GroupedProduct(const Fp8Rows& rows, const Fp8Rows& weights, const at::Tensor& ends) {
  return at::_scaled_grouped_mm(rows.values, weights.values.transpose(1, 2), rows.scale, weights.scale, ends,
                                /*bias=*/{}, /*scale_result=*/{}, at::kBFloat16, /*use_fast_accum=*/true);
}

}  // namespace augur
