#include "ops/layer/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "ops/layer/fp8_product.h"
#include "ops/layer/product.h"
#include "ops/layer/rms_norm.h"
#include "ops/layer/swiglu.h"

namespace augur {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Optional = std::optional<at::Tensor>;  // autograd's functions refuse undefined tensors

// What stands between the tensor that is kept and the product.
enum Before : int64_t { kNothing, kNorm, kSwiglu };

at::Tensor MakeInput(Before before, const at::Tensor& source, const at::Tensor& norm, double eps) {
  switch (before) {
    case kNorm:
      return RmsNorm(source, norm, eps);
    case kSwiglu:
      return Swiglu(source);
    case kNothing:
      break;
  }
  return source;
}

Fp8Rows MakeFp8Input(Before before, const at::Tensor& source, const at::Tensor& norm, double eps) {
  switch (before) {
    case kNorm:
      return RmsNormToFp8(source, norm, eps);
    case kSwiglu:
      return SwigluToFp8(source);
    case kNothing:
      break;
  }
  return RoundRowsToFp8(source);
}

at::Tensor Multiply(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!MultipliesInFloat(x)) {
    const at::Tensor rows = RowsOfCommonShape(x, weight.size(0));
    const at::Tensor out = at::linear(rows, weight, bias.defined() ? Optional(bias) : Optional());
    return rows.is_same(x) ? out : out.narrow(0, 0, x.size(0));
  }
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  ProductInto(out, x, weight.t(), bias);
  return out;
}

at::Tensor MultiplyFp8(const Fp8Rows& x, const at::Tensor& weight, const at::Tensor& bias) {
  return Fp8Product(x, RoundRowsToFp8(weight), bias, weight.scalar_type());
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& source, const Optional& norm,
                            const at::Tensor& weight, const Optional& bias, int64_t before, double eps,
                            bool fp8, at::TensorList factors, const LowRankPlaces& places) {
    variable_list saved = {source, norm.value_or(at::Tensor()), weight};
    saved.insert(saved.end(), factors.begin(), factors.end());
    context->save_for_backward(saved);
    context->saved_data["begins"] = places.begins;
    context->saved_data["scales"] = places.scales;
    context->saved_data["weight"] = weight.requires_grad();
    context->saved_data["source"] = source.requires_grad();
    context->saved_data["before"] = before;
    context->saved_data["eps"] = eps;
    context->saved_data["fp8"] = fp8;
    context->saved_data["bias"] = bias && bias->defined();
    const auto kind = static_cast<Before>(before);
    const at::Tensor scale = norm.value_or(at::Tensor()), shift = bias.value_or(at::Tensor());
    if (fp8) return MultiplyFp8(MakeFp8Input(kind, source, scale, eps), weight, shift);
    return Multiply(MakeInput(kind, source, scale, eps), weight, shift);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const auto before = static_cast<Before>(context->saved_data["before"].toInt());
    const at::Tensor grad = grads[0].contiguous();
    at::Tensor source = saved[0].detach(), norm = saved[1], x = source;
    if (before != kNothing) {
      const at::AutoGradMode recording(true);
      source.requires_grad_(true);
      if (norm.defined()) norm = norm.detach().requires_grad_(true);
      x = MakeInput(before, source, norm, context->saved_data["eps"].toDouble());
    }
    variable_list result(7);
    if (context->saved_data["weight"].toBool()) {
      result[2] = LinearWeightGradient(grad, x.detach(), context->saved_data["fp8"].toBool());
    }
    if (context->saved_data["bias"].toBool()) result[3] = grad.sum(0);
    if (before != kNothing || context->saved_data["source"].toBool()) {
      result[0] = LinearInputGradient(grad, saved[2], context->saved_data["fp8"].toBool());
    }
    if (before != kNothing) {
      const variable_list inputs = norm.defined() ? variable_list{source, norm} : variable_list{source};
      const variable_list found = torch::autograd::grad({x}, inputs, {result[0]});
      result[0] = found[0];
      if (norm.defined()) result[1] = found[1];
    }
    const LowRankPlaces places{context->saved_data["begins"].toIntVector(),
                               context->saved_data["scales"].toDoubleVector()};
    const variable_list factors(saved.begin() + 3, saved.end());
    for (at::Tensor& gradient : LowRankGradients(x.detach(), grad, factors, places)) {
      result.push_back(std::move(gradient));
    }
    result.emplace_back();  // the places
    return result;
  }
};

at::Tensor Apply(Before before, const at::Tensor& source, const at::Tensor& norm, double eps,
                 const at::Tensor& weight, const at::Tensor& bias, bool fp8,
                 const std::vector<LowRank>& low_rank) {
  const std::vector<at::Tensor> factors = FactorsOf(low_rank);
  return LinearFunction::apply(source, Optional(norm), weight, Optional(bias), static_cast<int64_t>(before),
                               eps, fp8, at::TensorList(factors), PlacesOf(low_rank));
}

}  // namespace

at::Tensor LinearInputGradient(const at::Tensor& grad, const at::Tensor& weight, bool fp8) {
  if (!fp8) return Product(grad, weight);
  // The sums run over output channels, so the weight takes a scale per input channel here.
  return Fp8Product(RoundRowsToFp8(grad), RoundColumnsToFp8(weight), {}, weight.scalar_type());
}

at::Tensor LinearWeightGradient(const at::Tensor& grad, const at::Tensor& x, bool fp8) {
  return fp8 && HasFp8WeightGradient(grad, x) ? Fp8WeightGradient(grad, x) : Product(grad.t(), x);
}

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const LinearOptions& options, const std::vector<LowRank>& low_rank) {
  const bool plain = !options.fp8 && low_rank.empty() && !MultipliesInFloat(x) && !CompilesShapes(x);
  if (plain) return Multiply(x, weight, bias);
  return Apply(kNothing, x, {}, 0, weight, bias, options.fp8, low_rank);
}

at::Tensor NormLinear(const at::Tensor& x, const at::Tensor& norm, double eps, const at::Tensor& weight,
                      const at::Tensor& bias, const LinearOptions& options,
                      const std::vector<LowRank>& low_rank) {
  if (!options.recompute) return Linear(RmsNorm(x, norm, eps), weight, bias, options, low_rank);
  return Apply(kNorm, x, norm, eps, weight, bias, options.fp8, low_rank);
}

at::Tensor SwigluLinear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const LinearOptions& options, const std::vector<LowRank>& low_rank) {
  if (!options.recompute) return Linear(Swiglu(x), weight, bias, options, low_rank);
  return Apply(kSwiglu, x, {}, 0, weight, bias, options.fp8, low_rank);
}

}  // namespace augur
