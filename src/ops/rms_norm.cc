#include "ops/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/rms_norm.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_in, const at::Tensor& weight,
                            double eps) {
    const at::Tensor x = x_in.contiguous();
    const at::Tensor y = at::empty_like(x);
    const at::Tensor inverse = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
    WithElementType(x, [&]<typename T>(T) {
      RmsNormForwardCpu(x.size(0), x.size(1), ConstData<T>(x), ConstData<T>(weight), static_cast<float>(eps),
                        Data<T>(y), Data<float>(inverse));
    });
    context->save_for_backward({x, weight, inverse});
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &inverse = saved[2];
    const at::Tensor grad_y = grads[0].contiguous();
    const at::Tensor grad_x = at::empty_like(x);
    const at::Tensor grad_weight = at::empty({x.size(1)}, x.options().dtype(at::kFloat));
    WithElementType(x, [&]<typename T>(T) {
      RmsNormBackwardCpu(x.size(0), x.size(1), ConstData<T>(x), ConstData<T>(weight),
                         ConstData<float>(inverse), ConstData<T>(grad_y), Data<T>(grad_x),
                         Data<float>(grad_weight));
    });
    return {grad_x, grad_weight.to(weight.scalar_type()), at::Tensor()};
  }
};

}  // namespace

at::Tensor RmsNormReference(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor normal = wide * at::rsqrt(wide.square().mean(-1, true) + eps);
  return weight * normal.to(x.scalar_type());
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x.is_cpu() ? RmsNormFunction::apply(x, weight, eps) : RmsNormReference(x, weight, eps);
}

}  // namespace augur
