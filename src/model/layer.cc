#include "model/layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <tuple>
#include <utility>

#include "model/moe.h"
#include "ops/layer/gated_mlp.h"
#include "ops/layer/rms_norm.h"

namespace augur {

namespace {

at::Tensor Multiply(const at::Tensor& x, const ModuleWeights& by, const LinearOptions& products) {
  return Linear(x, by.weight, by.bias, products, by.adapters);
}

at::Tensor NormMultiply(const at::Tensor& x, const ModuleWeights& norm, double eps, const ModuleWeights& by,
                        const LinearOptions& products) {
  if (!norm.weight.defined()) return Multiply(x, by, products);
  return NormLinear(x, norm.weight, eps, by.weight, by.bias, products, by.adapters);
}

// The norm of what a block adds to the residual, in families that have one.
at::Tensor NormOutput(const at::Tensor& x, const ModuleWeights& norm, double eps) {
  return norm.weight.defined() ? RmsNorm(x, norm.weight, eps) : x;
}

at::Tensor Attention(const ModelConfig& config, const LayerWeights& layer, const SequenceLayout& layout,
                     const SharedPrefixes& shared, const at::Tensor& qkv) {
  const AttentionSettings settings{config.heads, config.kv_heads, config.head_dim, config.rms_norm_eps};
  const at::Tensor &q_norm = layer[kQueryNorm].weight, &k_norm = layer[kKeyNorm].weight;
  if (config.qk_norm != QkNorm::kAllHeads) {
    return DropCopies(RotaryAttention(CopyPrefixes(qkv, shared), q_norm, k_norm, layout, settings), shared);
  }
  const int64_t q_width = config.q_width(), kv_width = config.kv_width();
  const at::Tensor q = RmsNorm(qkv.narrow(1, 0, q_width), q_norm, config.rms_norm_eps);
  const at::Tensor k = RmsNorm(qkv.narrow(1, q_width, kv_width), k_norm, config.rms_norm_eps);
  const at::Tensor normal = at::cat({q, k, qkv.narrow(1, q_width + kv_width, kv_width)}, 1);
  return DropCopies(RotaryAttention(CopyPrefixes(normal, shared), {}, {}, layout, settings), shared);
}

// x + delta, and the norm of that, or itself in families without the norm.
std::pair<at::Tensor, at::Tensor> AddNorm(const at::Tensor& x, const at::Tensor& delta,
                                          const ModuleWeights& norm, double eps) {
  if (norm.weight.defined()) return AddRmsNorm(x, delta, norm.weight, eps);
  const at::Tensor sum = x + delta;
  return {sum, sum};
}

// Whether the second half is what GatedMlp computes.
bool FusesMlp(const LayerWeights& layer, const LinearOptions& products, const at::Tensor& x) {
  const auto plain = [](const ModuleWeights& module) {
    return !module.bias.defined() && module.adapters.empty();
  };
  return (products.recompute || products.fp8) && HasGatedMlp(x) && layer[kMlpNorm].weight.defined() &&
         !layer[kMlpOutNorm].weight.defined() && plain(layer[kGateUp]) && plain(layer[kDown]);
}

}  // namespace

LayerOutput LayerForward(const ModelConfig& config, const LayerWeights& layer, const SequenceLayout& layout,
                         const at::Tensor& all, const LayerOptions& options) {
  const LinearOptions& products = options.products;
  const double eps = config.rms_norm_eps;
  const at::Tensor qkv = NormMultiply(all, layer[kAttentionNorm], eps, layer[kQkv], products);
  at::Tensor x = all, mixed = Attention(config, layer, layout, options.shared, qkv);
  if (options.rows.defined()) {
    x = x.index_select(0, options.rows);
    mixed = mixed.index_select(0, options.rows);
  }
  // Not addmm: it would round every partial sum to the precision of the residual, which holds channels in the
  // thousands; on a real model that costs a digit of the gradients.
  const at::Tensor delta = NormOutput(Multiply(mixed, layer[kOut], products), layer[kAttentionOutNorm], eps);
  if (layer.sparse()) {
    const auto [middle, normal] = AddNorm(x, delta, layer[kMlpNorm], eps);
    const MoeOutput moe = MoeForward(config.moe, layer, normal, options.replay, products);
    return {middle + NormOutput(moe.hidden, layer[kMlpOutNorm], eps), moe.router_logits, moe.experts};
  }
  if (FusesMlp(layer, products, x)) {
    return {GatedMlp(x, delta, {layer[kMlpNorm].weight, layer[kGateUp].weight, layer[kDown].weight}, eps,
                     products.fp8),
            {},
            {}};
  }
  at::Tensor middle, gate_up;
  if (products.recompute) {
    middle = x + delta;
    gate_up = NormMultiply(middle, layer[kMlpNorm], eps, layer[kGateUp], products);
  } else {
    at::Tensor normal;
    std::tie(middle, normal) = AddNorm(x, delta, layer[kMlpNorm], eps);
    gate_up = Multiply(normal, layer[kGateUp], products);
  }
  const ModuleWeights& last = layer[kDown];
  const at::Tensor down = SwigluLinear(gate_up, last.weight, last.bias, products, last.adapters);
  return {middle + NormOutput(down, layer[kMlpOutNorm], eps), {}, {}};
}

}  // namespace augur
