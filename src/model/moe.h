// A mixture of experts: each token goes through the few experts its router scores highest.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "model/model.h"
#include "ops/layer/linear.h"

namespace augur {

struct MoeOutput {
  at::Tensor hidden;         // [tokens, hidden]
  at::Tensor router_logits;  // [tokens, experts]
  at::Tensor experts;        // [tokens, experts_per_token] int64: those that computed each token
};

// What the experts make of their rows [N, hidden], those of expert e ending before ends[e] (int32 [experts]).
using Experts = std::function<at::Tensor(const at::Tensor& rows, const at::Tensor& ends)>;

// x [tokens, hidden], router [experts, hidden]. Routes as transformers' Qwen3MoeSparseMoeBlock does: softmax
// in float32, the top experts_per_token, their probabilities normalised to sum 1 with norm_topk_prob. Only
// chosen experts compute. With `replay` [tokens, experts_per_token] those experts are used, weighted by
// today's router. On a GPU nothing waits for the device.
MoeOutput RouteThrough(const MoeConfig& config, const at::Tensor& router, const at::Tensor& x,
                       const at::Tensor& replay, const Experts& experts);

// The same with a layer's router and experts. bfloat16 on a GPU uses grouped products; elsewhere one product
// an expert.
MoeOutput MoeForward(const MoeConfig& config, const LayerWeights& layer, const at::Tensor& x,
                     const at::Tensor& replay, const LinearOptions& products);

// How often each expert is among the experts_per_token that its router scores highest, over the tokens of all
// sparse layers.
struct ExpertChoices {
  at::Tensor counts;    // [experts] float64, on the logits' device; undefined: not counted
  double routings = 0;  // tokens × layers
};
ExpertChoices CountChoices(const MoeConfig& config, const std::vector<at::Tensor>& router_logits);

// transformers' load_balancing_loss_func over the logits of all sparse layers: experts × Σ_e (share of tokens
// routed to e) × (mean probability of e), 1 × experts_per_token when balanced. A scalar with gradient, which
// flows through the probabilities. Where the tokens are some of a larger batch, `all` are that batch's
// choices, and the losses of its parts add up to its own.
at::Tensor LoadBalancingLoss(const MoeConfig& config, const std::vector<at::Tensor>& router_logits,
                             const ExpertChoices& all = {});

}  // namespace augur
