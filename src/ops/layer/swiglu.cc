#include "ops/layer/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/layer/swiglu.h"
#include "ops/device.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input) {
    const at::Tensor gate_up = input.contiguous();
    const int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
    const at::Tensor out = at::empty({rows, width}, gate_up.options());
    WithElementType(gate_up, [&]<typename T>(T) {
      if (gate_up.is_cpu()) {
        SwigluForwardCpu(rows, width, ConstData<T>(gate_up), Data<T>(out));
      } else {
        SwigluForwardCuda(rows, width, ConstData<T>(gate_up), {}, Data<T>(out), nullptr, nullptr,
                          CurrentStream(gate_up));
      }
    });
    context->save_for_backward({gate_up});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor gate_up = context->get_saved_variables()[0];
    const at::Tensor grad_out = grads[0].contiguous();
    const at::Tensor grad = at::empty_like(gate_up);
    const int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
    WithElementType(gate_up, [&]<typename T>(T) {
      if (gate_up.is_cpu()) {
        SwigluBackwardCpu(rows, width, ConstData<T>(gate_up), ConstData<T>(grad_out), Data<T>(grad));
      } else {
        SwigluBackwardCuda(rows, width, ConstData<T>(gate_up), {}, ConstData<T>(grad_out),
                           {.grad_gate_up = Data<T>(grad)}, CurrentStream(gate_up));
      }
    });
    return {grad};
  }
};

}  // namespace

at::Tensor SwigluReference(const at::Tensor& gate_up) {
  const int64_t width = gate_up.size(1) / 2;
  return at::silu(gate_up.narrow(1, 0, width)) * gate_up.narrow(1, width, width);
}

at::Tensor Swiglu(const at::Tensor& gate_up) {
  const bool known = gate_up.scalar_type() == at::kFloat || gate_up.scalar_type() == at::kBFloat16;
  const bool on_gpu = gate_up.is_cuda() && known && BuiltWithCuda();
  return gate_up.is_cpu() || on_gpu ? SwigluFunction::apply(gate_up) : SwigluReference(gate_up);
}

}  // namespace augur
