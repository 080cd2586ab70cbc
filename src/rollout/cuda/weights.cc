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
    const LayerWeights& a = from.layers[i];
    LayerWeights& b = to.layers[i];
    f(a.input_norm, b.input_norm);
    f(a.post_attention_norm, b.post_attention_norm);
    f(a.q_norm, b.q_norm);
    f(a.k_norm, b.k_norm);
    f(a.router, b.router);
    f(a.experts_gate_up, b.experts_gate_up);
    f(a.experts_down, b.experts_down);
    for (const auto part :
         {&LayerWeights::qkv, &LayerWeights::out, &LayerWeights::gate_up, &LayerWeights::down}) {
      f((a.*part).weight, (b.*part).weight);
      f((a.*part).bias, (b.*part).bias);
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
  if (!weight.defined()) return;
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
    const LayerWeights& from = model_.layers[i];
    for (const auto& [linear, to] : {std::pair(&from.qkv, &layers_[i].qkv),
                                     {&from.out, &layers_[i].out},
                                     {&from.gate_up, &layers_[i].gate_up},
                                     {&from.down, &layers_[i].down}}) {
      to->bias = linear->bias;
      if (fp8_) {
        Quantise(linear->weight, to);
      } else {
        to->weight = linear->weight;
      }
    }
    if (fp8_ && from.router.defined() && HasFp8GroupedProduct(from.experts_gate_up) &&
        HasFp8GroupedProduct(from.experts_down)) {
      Quantise(from.experts_gate_up, &layers_[i].experts_gate_up);
      Quantise(from.experts_down, &layers_[i].experts_down);
    }
  }
  return moved;
}

}  // namespace augur
