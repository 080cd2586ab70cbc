#include "ops/layer/gated_mlp.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/layer/swiglu.h"
#include "ops/device.h"
#include "ops/layer/fp8_product.h"
#include "ops/layer/linear.h"
#include "ops/layer/rms_norm.h"
#include "ops/layer/swiglu.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The product of gate and up. In FP8 it is without its scales, which SwiGLU multiplies in, as in rollouts:
// both round it before.
struct GateUpRows {
  at::Tensor values;       // [rows, 2 * inner]
  at::Tensor row, column;  // its scales, or undefined

  ProductScale scale() const {
    return row.defined() ? ProductScale{ConstData<float>(row), ConstData<float>(column)} : ProductScale{};
  }
};

GateUpRows MultiplyGateUp(const Fp8Rows& x, const at::Tensor& weight) {
  const Fp8Rows by = RoundRowsToFp8(weight);
  if (!HasFp8Product(weight)) return {Fp8Product(x, by, {}, weight.scalar_type()), {}, {}};
  return {Fp8ProductWithoutScales(x, by, weight.scalar_type()), x.scale, by.scale};
}

Fp8Rows RoundSwiglu(const GateUpRows& gate_up) {
  const int64_t rows = gate_up.values.size(0), width = gate_up.values.size(1) / 2;
  const Fp8Rows out = EmptyFp8Rows(gate_up.values, {rows, width});
  WithElementType(gate_up.values, [&]<typename T>(T) {
    SwigluForwardCuda<T>(rows, width, ConstData<T>(gate_up.values), gate_up.scale(), nullptr,
                         Data<uint8_t>(out.values), Data<float>(out.scale), CurrentStream(gate_up.values));
  });
  return out;
}

// What the backward of SwiGLU leaves for the products around it.
struct GateUpGradient {
  at::Tensor grad;   // [rows, 2 * inner]
  at::Tensor inner;  // [rows, inner]: SwiGLU's result
  Fp8Rows rounded;   // of grad, where asked for
};

GateUpGradient GateUpBackward(const GateUpRows& gate_up, const at::Tensor& grad_inner, bool fp8) {
  const at::Tensor& from = gate_up.values;
  GateUpGradient out{at::empty_like(from), at::empty_like(grad_inner), {}};
  if (fp8) out.rounded = EmptyFp8Rows(from, from.sizes());
  WithElementType(from, [&]<typename T>(T) {
    SwigluGradient<T> to{.grad_gate_up = Data<T>(out.grad), .out = Data<T>(out.inner)};
    if (fp8) {
      to.quantised = Data<uint8_t>(out.rounded.values);
      to.scale = Data<float>(out.rounded.scale);
    }
    SwigluBackwardCuda(from.size(0), from.size(1) / 2, ConstData<T>(from), gate_up.scale(),
                       ConstData<T>(grad_inner), to, CurrentStream(from));
  });
  return out;
}

struct GatedMlpFunction : torch::autograd::Function<GatedMlpFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& delta,
                            const at::Tensor& norm, const at::Tensor& gate_up_weight,
                            const at::Tensor& down_weight, double eps, bool fp8) {
    Fp8Rows rounded;
    const NormResult normal =
        RmsNormForward(x.contiguous(), delta.contiguous(), norm, eps, fp8 ? &rounded : nullptr);
    const GateUpRows gate_up = fp8 ? MultiplyGateUp(rounded, gate_up_weight)
                                   : GateUpRows{Linear(normal.y, gate_up_weight, {}, {}), {}, {}};
    context->save_for_backward({normal.sum, normal.inverse, norm, gate_up.values, gate_up_weight, down_weight,
                                gate_up.row, gate_up.column});
    context->saved_data["eps"] = eps;
    context->saved_data["fp8"] = fp8;
    context->saved_data["trained"] = gate_up_weight.requires_grad() || down_weight.requires_grad();
    if (!fp8) return normal.sum + Linear(Swiglu(gate_up.values), down_weight, {}, {});
    return normal.sum + Fp8Product(RoundSwiglu(gate_up), RoundRowsToFp8(down_weight), {}, x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &middle = saved[0], &inverse = saved[1], &norm = saved[2], &gate_up_weight = saved[4];
    const bool fp8 = context->saved_data["fp8"].toBool(), trained = context->saved_data["trained"].toBool();
    const at::Tensor grad = grads[0].contiguous();
    variable_list result(7);
    GateUpGradient made =
        GateUpBackward({saved[3], saved[6], saved[7]}, LinearInputGradient(grad, saved[5], fp8), fp8);
    if (trained) result[4] = LinearWeightGradient(grad, made.inner, fp8);
    made.inner.reset();
    if (trained) {
      const at::Tensor normal = RmsNormForward(middle, {}, norm, context->saved_data["eps"].toDouble()).y;
      result[3] = LinearWeightGradient(made.grad, normal, fp8);
    }
    const at::Tensor grad_normal =
        fp8 ? Fp8Product(made.rounded, RoundColumnsToFp8(gate_up_weight), {}, middle.scalar_type())
            : LinearInputGradient(made.grad, gate_up_weight, false);
    made = {};
    std::tie(result[0], result[2]) = RmsNormBackward(middle, norm, inverse, grad_normal, grad);
    result[1] = result[0];
    return result;
  }
};

}  // namespace

bool HasGatedMlp(const at::Tensor& x) {
  return x.is_cuda() && BuiltWithCuda() &&
         (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kFloat);
}

at::Tensor GatedMlp(const at::Tensor& x, const at::Tensor& delta, const GatedMlpWeights& weights, double eps,
                    bool fp8) {
  return GatedMlpFunction::apply(x, delta, weights.norm, weights.gate_up, weights.down, eps, fp8);
}

}  // namespace augur
