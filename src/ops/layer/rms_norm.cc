#include "ops/layer/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/layer/rms_norm.h"
#include "ops/device.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    const NormResult out = RmsNormForward(x.contiguous(), {}, weight, eps);
    context->save_for_backward({out.sum, weight, out.inverse});
    return out.y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const auto [grad_x, grad_weight] =
        RmsNormBackward(saved[0], saved[1], saved[2], grads[0].contiguous(), {});
    return {grad_x, grad_weight, at::Tensor()};
  }
};

struct AddRmsNormFunction : torch::autograd::Function<AddRmsNormFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& delta,
                               const at::Tensor& weight, double eps) {
    const NormResult out = RmsNormForward(x.contiguous(), delta.contiguous(), weight, eps);
    context->save_for_backward({out.sum, weight, out.inverse});
    return {out.sum, out.y};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const auto [grad_x, grad_weight] =
        RmsNormBackward(saved[0], saved[1], saved[2], grads[1].contiguous(), grads[0].contiguous());
    return {grad_x, grad_x, grad_weight, at::Tensor()};
  }
};

bool HasKernel(const at::Tensor& x) {
  const bool known = x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
  return x.is_cpu() || (x.is_cuda() && known && BuiltWithCuda());
}

}  // namespace

NormResult RmsNormForward(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight, double eps,
                          Fp8Rows* to) {
  NormResult out{x, {}, at::empty({x.size(0)}, x.options().dtype(at::kFloat))};
  if (to == nullptr) out.y = at::empty_like(x);
  if (delta.defined()) out.sum = x.is_cpu() ? x + delta : at::empty_like(x);
  WithElementType(x, [&]<typename T>(T) {
    if (x.is_cpu()) {
      RmsNormForwardCpu(x.size(0), x.size(1), ConstData<T>(out.sum), ConstData<T>(weight),
                        static_cast<float>(eps), Data<T>(out.y), Data<float>(out.inverse));
      return;
    }
    RmsNormRows<T> rows{.rows = x.size(0), .width = x.size(1), .x = ConstData<T>(x)};
    if (delta.defined()) {
      rows.delta = ConstData<T>(delta);
      rows.sum = Data<T>(out.sum);
    }
    rows.weight = ConstData<T>(weight);
    rows.eps = static_cast<float>(eps);
    rows.inverse = Data<float>(out.inverse);
    if (to == nullptr) {
      rows.y = Data<T>(out.y);
    } else {
      *to = EmptyFp8Rows(x, x.sizes());
      rows.quantised = Data<uint8_t>(to->values);
      rows.scale = Data<float>(to->scale);
    }
    RmsNormForwardCuda(rows, CurrentStream(x));
  });
  return out;
}

std::pair<at::Tensor, at::Tensor> RmsNormBackward(const at::Tensor& sum, const at::Tensor& weight,
                                                  const at::Tensor& inverse, const at::Tensor& grad_y,
                                                  const at::Tensor& extra) {
  const int64_t rows = sum.size(0), width = sum.size(1);
  const at::Tensor grad_x = at::empty_like(sum);
  const at::Tensor grad_weight = at::empty({width}, sum.options().dtype(at::kFloat));
  WithElementType(sum, [&]<typename T>(T) {
    if (sum.is_cpu()) {
      RmsNormBackwardCpu(rows, width, ConstData<T>(sum), ConstData<T>(weight), ConstData<float>(inverse),
                         ConstData<T>(grad_y), Data<T>(grad_x), Data<float>(grad_weight));
      return;
    }
    const at::Tensor partial = at::empty({RmsNormPartialRows(rows), width}, grad_weight.options());
    RmsNormBackwardCuda(rows, width, ConstData<T>(sum), ConstData<T>(weight), ConstData<float>(inverse),
                        ConstData<T>(grad_y), extra.defined() ? ConstData<T>(extra) : nullptr,
                        Data<T>(grad_x), Data<float>(partial), Data<float>(grad_weight), CurrentStream(sum));
  });
  if (sum.is_cpu() && extra.defined()) grad_x.add_(extra);
  return {grad_x, grad_weight.to(weight.scalar_type())};
}

at::Tensor RmsNormReference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normal = wide * at::rsqrt(wide.square().mean(-1, true) + eps);
  return (normal * weight.to(at::kFloat)).to(x.scalar_type());
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return HasKernel(x) ? RmsNormFunction::apply(x, weight, eps) : RmsNormReference(x, weight, eps);
}

std::pair<at::Tensor, at::Tensor> AddRmsNorm(const at::Tensor& x, const at::Tensor& delta,
                                             const at::Tensor& weight, double eps) {
  if (x.is_cpu() || !HasKernel(x)) {
    const at::Tensor sum = x + delta;
    return {sum, RmsNorm(sum, weight, eps)};
  }
  const variable_list out = AddRmsNormFunction::apply(x, delta, weight, eps);
  return {out[0], out[1]};
}

}  // namespace augur
