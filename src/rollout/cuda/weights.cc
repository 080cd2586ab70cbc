#include "rollout/cuda/weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "kernels/layer/quantise_rows.h"
#include "ops/device.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

// Every parameter of two models of one shape but the head, side by side.
template <typename F>
void ForEachPair(const Model& from, Model& to, F f) {
  f(from.embedding, to.embedding);
  f(from.norm, to.norm);
  for (size_t i = 0; i < from.layers.size(); ++i) {
    for (size_t slot = 0; slot < kSlots; ++slot) {
      f(from.layers[i][slot].weight, to.layers[i][slot].weight);
      f(from.layers[i][slot].bias, to.layers[i][slot].bias);
    }
  }
}

// weight [..., out, in], rounded by output channel, where `to` stands already or to new memory.
void Quantise(const at::Tensor& weight, Fp8Rows* to) {
  const auto options = weight.options();
  if (!to->values.defined()) {
    to->values = at::empty(weight.sizes(), options.dtype(at::kFloat8_e4m3fn));
    to->scale = at::empty(weight.sizes().slice(0, weight.dim() - 1), options.dtype(at::kFloat));
  }
  WithElementType(weight, [&]<typename T>(T) {
    QuantiseRowsCuda(to->scale.numel(), weight.size(-1), ConstData<T>(weight), Data<uint8_t>(to->values),
                     Data<float>(to->scale), CurrentStream(weight));
  });
}

void Quantise(const at::Tensor& weight, CudaLinear* to) {
  Fp8Rows rows{to->weight, to->scale};
  Quantise(weight, &rows);
  to->weight = rows.values;
  to->scale = rows.scale.view({1, -1});
}

}  // namespace

CudaWeights::CudaWeights(const Model& model, RolloutPrecision precision, bool own)
    : fp8_(precision == RolloutPrecision::kFp8),
      own_(own),
      dtype_(precision == RolloutPrecision::kFp32 ? at::kFloat : at::kBFloat16) {
  Update(model);
}

bool CudaWeights::Update(const Model& model) {
  const at::NoGradGuard no_grad;
  const bool first = model_.layers.empty();
  if (first) {
    one_ = at::ones({}, model.embedding.options().dtype(at::kFloat));
    model_ = model;  // for the structure; the tensors are replaced below
    layers_.resize(model.layers.size());
  }
  bool moved = first;
  const auto take = [&](const at::Tensor& from, at::Tensor& to) {
    if (!from.defined()) return;
    if (!own_ && from.scalar_type() == dtype_ && from.is_contiguous()) {
      moved |= from.data_ptr() != to.data_ptr();
      to = from.detach();
    } else if (first) {
      to = from.detach().to(dtype_, /*non_blocking=*/false, /*copy=*/true).contiguous();
    } else {
      to.copy_(from);
    }
  };
  ForEachPair(model, model_, take);
  if (model.config.tied_head) {
    model_.head = model_.embedding;
  } else {
    take(model.head, model_.head);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (const ModuleSpec& spec : LayerTable(model_.config, static_cast<int64_t>(i))) {
      if (!IsLinear(spec.role) || spec.experts > 0) continue;
      const ModuleWeights& from = model_.layers[i][spec.slot];
      CudaLinear& to = layers_[i][spec.slot];
      to.bias = from.bias;
      if (fp8_) {
        Quantise(from.weight, &to);
      } else {
        to.weight = from.weight;
      }
    }
    const LayerWeights& layer = model_.layers[i];
    const at::Tensor &gate_up = layer[kExpertsGateUp].weight, &down = layer[kExpertsDown].weight;
    if (fp8_ && layer.sparse() && HasFp8GroupedProduct(gate_up) && HasFp8GroupedProduct(down)) {
      Quantise(gate_up, &layers_[i].experts_gate_up);
      Quantise(down, &layers_[i].experts_down);
    }
  }
  return moved;
}

}  // namespace augur
