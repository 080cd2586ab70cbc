#include "model/layer.h"

#include <ATen/TensorOperators.h>

#include <tuple>

#include "model/moe.h"
#include "ops/rms_norm.h"

namespace augur {

LayerOutput LayerForward(const ModelConfig& config, const LayerWeights& layer, const SequenceLayout& layout,
                         const at::Tensor& all, const LayerOptions& options) {
  const LinearOptions& products = options.products;
  const AttentionSettings settings{config.heads, config.kv_heads, config.head_dim, config.rms_norm_eps};
  const double eps = config.rms_norm_eps;
  const at::Tensor qkv = NormLinear(all, layer.input_norm, eps, layer.qkv.weight, layer.qkv.bias, products);
  at::Tensor x = all, mixed = RotaryAttention(qkv, layer.q_norm, layer.k_norm, layout, settings);
  if (options.rows.defined()) {
    x = x.index_select(0, options.rows);
    mixed = mixed.index_select(0, options.rows);
  }
  // Not addmm: it would round every partial sum to the precision of the residual, which holds channels in the
  // thousands; on a real model that costs a digit of the gradients.
  const at::Tensor delta = Linear(mixed, layer.out.weight, layer.out.bias, products);
  if (layer.router.defined()) {
    const auto [middle, normal] = AddRmsNorm(x, delta, layer.post_attention_norm, eps);
    const MoeOutput moe = MoeForward(config.moe, layer, normal, options.replay, products);
    return {middle + moe.hidden, moe.router_logits, moe.experts};
  }
  at::Tensor middle, gate_up;
  if (products.recompute) {
    middle = x + delta;
    gate_up = NormLinear(middle, layer.post_attention_norm, eps, layer.gate_up.weight, layer.gate_up.bias,
                         products);
  } else {
    at::Tensor normal;
    std::tie(middle, normal) = AddRmsNorm(x, delta, layer.post_attention_norm, eps);
    gate_up = Linear(normal, layer.gate_up.weight, layer.gate_up.bias, products);
  }
  return {middle + SwigluLinear(gate_up, layer.down.weight, layer.down.bias, products), {}, {}};
}

}  // namespace augur
