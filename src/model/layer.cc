#include "model/layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>

#include "model/moe.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"

namespace augur {
namespace {

at::Tensor Apply(const LinearWeights& linear, const at::Tensor& x) {
  return linear.bias.defined() ? at::linear(x, linear.weight, linear.bias) : at::linear(x, linear.weight);
}

}  // namespace

LayerOutput LayerForward(const ModelConfig& config, const LayerWeights& layer, const SequenceLayout& layout,
                         const at::Tensor& x, const at::Tensor& replay) {
  const AttentionSettings settings{config.heads, config.kv_heads, config.head_dim, config.rms_norm_eps};
  const at::Tensor qkv = Apply(layer.qkv, RmsNorm(x, layer.input_norm, config.rms_norm_eps));
  const at::Tensor mixed = RotaryAttention(qkv, layer.q_norm, layer.k_norm, layout, settings);
  // Not addmm: it would round every partial sum to the precision of the residual, which holds channels in the
  // thousands; on a real model that costs a digit of the gradients.
  const auto [middle, normal] =
      AddRmsNorm(x, Apply(layer.out, mixed), layer.post_attention_norm, config.rms_norm_eps);
  if (!layer.router.defined()) {
    return {middle + Apply(layer.down, Swiglu(Apply(layer.gate_up, normal))), {}, {}};
  }
  const MoeOutput moe = MoeForward(config.moe, layer, normal, replay);
  return {middle + moe.hidden, moe.router_logits, moe.experts};
}

}  // namespace augur
