#include "model/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>

#include "ops/swiglu.h"

namespace augur {
namespace {

struct Route {
  at::Tensor experts;  // [tokens, experts_per_token] int64
  at::Tensor weights;  // [tokens, experts_per_token], dtype of the logits
};

Route ChooseExperts(const MoeConfig& config, const at::Tensor& logits, const at::Tensor& replay) {
  const at::Tensor probabilities = at::softmax(logits, -1, at::kFloat);
  at::Tensor experts = replay, weights;
  if (replay.defined()) {
    weights = probabilities.gather(1, replay);
  } else {
    std::tie(weights, experts) = at::topk(probabilities, config.experts_per_token, -1);
  }
  if (config.norm_topk_prob) weights = weights / weights.sum(-1, true);
  return {experts, weights.to(logits.scalar_type())};
}

// rows [N, in], those of expert e ending before ends[e]; weights [experts, out, in] → [N, out].
at::Tensor GroupedLinear(const at::Tensor& rows, const at::Tensor& weights, const at::Tensor& ends,
                         const LinearOptions& products) {
  const bool aligned = weights.size(1) % 8 == 0 && weights.size(2) % 8 == 0;
  if (!products.fp8 && rows.is_cuda() && rows.scalar_type() == at::kBFloat16 && aligned) {
    return at::_grouped_mm(rows, weights.transpose(1, 2), ends);
  }
  const std::vector<at::Tensor> experts = weights.unbind(0);  // one gradient for all, unlike select
  const at::Tensor host = ends.cpu();
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (size_t e = 0; e < experts.size(); ++e) {
    const int64_t end = host.const_data_ptr<int32_t>()[e];
    if (end > begin) parts.push_back(Linear(rows.narrow(0, begin, end - begin), experts[e], {}, products));
    begin = end;
  }
  return at::cat(parts, 0);
}

}  // namespace

MoeOutput MoeForward(const MoeConfig& config, const LayerWeights& layer, const at::Tensor& x,
                     const at::Tensor& replay, const LinearOptions& products) {
  const at::Tensor logits = at::linear(x, layer.router);
  const Route route = ChooseExperts(config, logits, replay);
  // Rows of the same expert side by side: row r of `rows` is token order[r] / experts_per_token.
  const at::Tensor flat = route.experts.flatten();
  const at::Tensor order = at::argsort(flat, /*stable=*/true, -1, false);
  const at::Tensor token = order.div(config.experts_per_token, "floor");
  const at::Tensor ends = at::bincount(flat, {}, config.experts).cumsum(0).to(at::kInt);
  const at::Tensor rows = x.index_select(0, token);
  const at::Tensor gate_up = GroupedLinear(rows, layer.experts_gate_up, ends, products);
  const at::Tensor down = GroupedLinear(Swiglu(gate_up), layer.experts_down, ends, products);
  const at::Tensor weighted = down * route.weights.flatten().index_select(0, order).unsqueeze(1);
  return {at::zeros_like(x).index_add(0, token, weighted), logits, route.experts};
}

at::Tensor LoadBalancingLoss(const MoeConfig& config, const std::vector<at::Tensor>& router_logits) {
  const at::Tensor probabilities = at::softmax(at::cat(router_logits, 0), -1);
  const at::Tensor chosen = std::get<1>(at::topk(probabilities, config.experts_per_token, -1));
  const at::Tensor share =
      at::one_hot(chosen, config.experts).to(at::kFloat).mean(0);  // [per token, experts]
  return (share * probabilities.mean(0).unsqueeze(0)).sum() * static_cast<double>(config.experts);
}

}  // namespace augur
