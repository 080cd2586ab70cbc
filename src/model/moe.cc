#include "model/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/layer/fp8_product.h"
#include "ops/layer/grouped_product.h"
#include "ops/layer/swiglu.h"

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

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Row r is x[order[r] / times], where `order` is a permutation and `place` its inverse. The backward adds the
// rows of a token in a fixed order, where index_select's would use atomic additions.
struct SpreadRows : torch::autograd::Function<SpreadRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& order,
                            const at::Tensor& place, int64_t times) {
    context->save_for_backward({place});
    context->saved_data["times"] = times;
    return x.index_select(0, order.div(times, "floor"));
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor place = context->get_saved_variables()[0];
    const int64_t times = context->saved_data["times"].toInt(), width = grads[0].size(1);
    return {grads[0].index_select(0, place).view({-1, times, width}).sum(1), {}, {}, {}};
  }
};

// Row place[i] goes to i: the rows of the experts, back next to their tokens.
struct Reorder : torch::autograd::Function<Reorder> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& order,
                            const at::Tensor& place) {
    context->save_for_backward({order});
    return x.index_select(0, place);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {grads[0].index_select(0, context->get_saved_variables()[0]), {}, {}};
  }
};

// Grouped products on a GPU; in FP8 rounded as Linear does it.
struct GroupedProduct : torch::autograd::Function<GroupedProduct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& weights,
                            const at::Tensor& ends, bool fp8) {
    context->save_for_backward({rows, weights, ends});
    context->saved_data["fp8"] = fp8;
    return fp8 ? Fp8GroupedProduct(RoundRowsToFp8(rows), RoundRowsToFp8(weights), ends)
               : at::_grouped_mm(rows, weights.transpose(1, 2), ends);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad = grads[0].contiguous(), &weights = saved[1], &ends = saved[2];
    const bool fp8 = context->saved_data["fp8"].toBool();
    return {InputGradient(grad, weights, ends, fp8),
            context->needs_input_grad(1) ? GroupedWeightGradient(grad, saved[0], ends) : at::Tensor(),
            {},
            {}};
  }
  static at::Tensor InputGradient(const at::Tensor& grad, const at::Tensor& weights, const at::Tensor& ends,
                                  bool fp8) {
    return fp8 ? Fp8GroupedProduct(RoundRowsToFp8(grad), RoundColumnsToFp8(weights), ends)
               : at::_grouped_mm(grad, weights, ends);
  }
};

// rows [N, in], those of expert e ending before ends[e]; weights [experts, out, in] → [N, out].
at::Tensor GroupedLinear(const at::Tensor& rows, const at::Tensor& weights, const at::Tensor& ends,
                         const LinearOptions& products) {
  if (HasGroupedProduct(rows, weights)) {
    if (!products.fp8 || HasFp8GroupedProduct(weights)) {
      return GroupedProduct::apply(rows, weights, ends, products.fp8);
    }
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

// Calls f with each expert that has rows, their begin and their count.
template <typename F>
void ForEachExpert(const at::Tensor& ends, F f) {
  const at::Tensor host = ends.cpu();
  int64_t begin = 0;
  for (int64_t e = 0; e < host.size(0); ++e) {
    const int64_t end = host.const_data_ptr<int32_t>()[e];
    if (end > begin) f(e, begin, end - begin);
    begin = end;
  }
}

// GroupedLinear of weights that stand for base + scale b a (ops/layer/low_rank.h), a [experts, rank, in] and
// b [experts, out, rank]: gradients go to the rows, a and b.
struct LowRankGroupedLinear : torch::autograd::Function<LowRankGroupedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& weights,
                            const at::Tensor& ends, const at::Tensor& a, const at::Tensor& b, double scale,
                            bool fp8) {
    context->save_for_backward({rows, weights, ends, a, b});
    context->saved_data["scale"] = scale;
    context->saved_data["fp8"] = fp8;
    return GroupedLinear(rows, weights, ends, {.fp8 = fp8});
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad = grads[0].contiguous(), &rows = saved[0], &weights = saved[1], &ends = saved[2];
    const at::Tensor a = saved[3].to(rows.scalar_type()), b = saved[4].to(rows.scalar_type());
    const double scale = context->saved_data["scale"].toDouble();
    const bool fp8 = context->saved_data["fp8"].toBool();
    const bool grouped = HasGroupedProduct(rows, weights) && HasGroupedProduct(rows, a) &&
                         HasGroupedProduct(rows, b) && (!fp8 || HasFp8GroupedProduct(weights));
    variable_list result(7);
    if (grouped) {
      result[0] = GroupedProduct::InputGradient(grad, weights, ends, fp8);
      const at::Tensor behind = at::_grouped_mm(grad, b, ends);                 // [N, rank]
      const at::Tensor inner = at::_grouped_mm(rows, a.transpose(1, 2), ends);  // [N, rank]
      result[3] = GroupedWeightGradient(behind, rows, ends).to(at::kFloat).mul_(scale);
      result[4] = GroupedWeightGradient(grad, inner, ends).to(at::kFloat).mul_(scale);
      return result;
    }
    result[0] = at::zeros_like(rows);
    result[3] = at::zeros_like(saved[3]);
    result[4] = at::zeros_like(saved[4]);
    ForEachExpert(ends, [&](int64_t e, int64_t begin, int64_t count) {
      const at::Tensor dy = grad.narrow(0, begin, count), x = rows.narrow(0, begin, count);
      result[0].narrow(0, begin, count).copy_(LinearInputGradient(dy, weights[e], fp8));
      const std::vector<at::Tensor> found = LowRankGradients(x, dy, {a[e], b[e]}, {{0}, {scale}});
      result[3][e].copy_(found[0]);
      result[4][e].copy_(found[1]);
    });
    return result;
  }
};

at::Tensor MultiplyExperts(const at::Tensor& rows, const ModuleWeights& by, const at::Tensor& ends,
                           const LinearOptions& products) {
  if (by.adapters.empty()) return GroupedLinear(rows, by.weight, ends, products);
  const LowRank& part = by.adapters.front();  // of all outputs
  return LowRankGroupedLinear::apply(rows, by.weight, ends, part.a, part.b, part.scale, products.fp8);
}

MoeOutput RouteByLogits(const MoeConfig& config, const at::Tensor& logits, const at::Tensor& x,
                        const at::Tensor& replay, const Experts& experts) {
  const Route route = ChooseExperts(config, logits, replay);
  // Rows of the same expert side by side: row r of `rows` is token order[r] / experts_per_token. Nothing here
  // waits for the device, and every sum has its order.
  const int64_t times = config.experts_per_token;
  const at::Tensor flat = route.experts.flatten();
  const at::Tensor order = at::argsort(flat, /*stable=*/true, -1, false);
  const at::Tensor place =
      at::empty_like(order).scatter_(0, order, at::arange(order.size(0), order.options()));
  const at::Tensor ends =
      at::searchsorted(flat.index_select(0, order), at::arange(config.experts, flat.options()),
                       /*out_int32=*/true, /*right=*/true);
  const at::Tensor rows = SpreadRows::apply(x, order, place, times);
  const at::Tensor apart = Reorder::apply(experts(rows, ends), order, place).view({x.size(0), times, -1});
  return {(apart * route.weights.unsqueeze(2)).sum(1), logits, route.experts};
}

}  // namespace

MoeOutput RouteThrough(const MoeConfig& config, const at::Tensor& router, const at::Tensor& x,
                       const at::Tensor& replay, const Experts& experts) {
  return RouteByLogits(config, at::linear(x, router), x, replay, experts);
}

MoeOutput MoeForward(const MoeConfig& config, const LayerWeights& layer, const at::Tensor& x,
                     const at::Tensor& replay, const LinearOptions& products) {
  const ModuleWeights& router = layer[kRouter];
  const at::Tensor logits = Linear(x, router.weight, router.bias, {}, router.adapters);
  return RouteByLogits(config, logits, x, replay, [&](const at::Tensor& rows, const at::Tensor& ends) {
    const at::Tensor gate_up = MultiplyExperts(rows, layer[kExpertsGateUp], ends, products);
    return MultiplyExperts(Swiglu(gate_up), layer[kExpertsDown], ends, products);
  });
}

ExpertChoices CountChoices(const MoeConfig& config, const std::vector<at::Tensor>& router_logits) {
  const at::NoGradGuard no_grad;
  const at::Tensor probabilities = at::softmax(at::cat(router_logits, 0), -1, at::kFloat);
  const at::Tensor chosen = std::get<1>(at::topk(probabilities, config.experts_per_token, -1)).flatten();
  const auto type = chosen.options().dtype(at::kDouble);  // sums of ones are exact in any order
  return {at::zeros({config.experts}, type).scatter_add_(0, chosen, at::ones(chosen.sizes(), type)),
          static_cast<double>(probabilities.size(0))};
}

at::Tensor LoadBalancingLoss(const MoeConfig& config, const std::vector<at::Tensor>& router_logits,
                             const ExpertChoices& all) {
  const ExpertChoices choices = all.counts.defined() ? all : CountChoices(config, router_logits);
  const at::Tensor share = (choices.counts / choices.routings).to(at::kFloat);
  const at::Tensor probability = at::softmax(at::cat(router_logits, 0), -1, at::kFloat).sum(0);
  return (share * probability).sum() * (static_cast<double>(config.experts) / choices.routings);
}

}  // namespace augur
