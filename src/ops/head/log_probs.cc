#include "ops/head/log_probs.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "ops/head/head_gradients.h"
#include "ops/head/head_logits.h"
#include "ops/launch.h"
#include "ops/parallel/collectives.h"

namespace augur {
namespace {

using at::Tensor;
using torch::autograd::variable_list;

// The statistics in the order of `order`.
TokenPass ReadStats(const Head& head, const Tensor& ids, const HeadOptions& options, int64_t vocab_size,
                    const RowOrder& order) {
  HeadLogits logits(head, options, vocab_size);
  const TokenPass pass = StartRowStats(order.Sorted(ids), ComputeType(head.hidden));
  const Tensor local_ids = logits.LocalIds(pass.support);
  logits.ForEachChunk(order, [&](const HeadChunk& chunk) {
    logits.Stats(chunk.hidden, local_ids.narrow(0, chunk.begin, chunk.rows),
                 pass.Slice(chunk.begin, chunk.rows));
  });
  return pass;
}

// In the order of the caller's rows.
LogProbs Restored(const RowOrder& order, const LogProbs& x) {
  return {order.Restored(x.support), order.Restored(x.tail_mass), order.Restored(x.tail_square),
          order.Restored(x.entropy)};
}

// Of d loss / d z the parts that RowGradient takes. With pi the policy, T its tail mass and H its entropy:
//   d log pi_c / d z_j = 1[j = c] - pi_j
//   d T / d z_j        = pi_j (1 - T) outside the support, pi_j (-T) within
//   d H / d z_j        = -pi_j (log pi_j + H)
void FillGradientParts(const Tensor& support, const Tensor& tail_mass, const Tensor& entropy,
                       TokenPass* pass) {
  const Tensor unused = pass->support.lt(0);
  pass->sparse = (support - tail_mass.unsqueeze(1) * pass->policy.exp()).masked_fill_(unused, 0);
  pass->dense = tail_mass * (1 - pass->tail_mass) - support.masked_fill(unused, 0).sum(1);
  pass->entropy_weight = -entropy;
}

// What a backward needs. Outputs are not among it, so that nothing refers to itself.
struct SavedCall : torch::CustomClassHolder {
  Head head;  // readable
  HeadOptions options;
  HeadWants wants;
  int64_t vocab_size = 0;
  RowOrder order;
  TokenPass pass;  // in this order
};

HeadPassResult Backward(const SavedCall& call, const TokenPass& pass) {
  HeadLogits logits(call.head, call.options, call.vocab_size);
  const Tensor local_ids = logits.LocalIds(pass.support);
  HeadGradients sums(call.head, logits.factor(), call.wants, call.options.accumulate_float32,
                     logits.Chunks(call.order.active) + logits.Chunks(call.order.inert()));
  logits.ForEachChunk(call.order, [&](const HeadChunk& chunk) {
    const LogitView view = logits.Logits(chunk.hidden, local_ids.narrow(0, chunk.begin, chunk.rows));
    const GradientTarget target{.gradient = view.logits, .scale = {}, .source = {}, .precise_support = true};
    ComputeRowGradient(view, pass.Slice(chunk.begin, chunk.rows), target);
    sums.Add({view.logits, {}, chunk.hidden, chunk.tokens, chunk.begin});
  });
  HeadPassResult result;
  sums.Finish(&result);
  if (logits.parallel() && call.wants.hidden) {
    result.hidden_gradient = AllReduce(result.hidden_gradient, "sum", call.options.group);
  }
  return result;
}

// What autograd need not know of.
struct Request {
  const Tensor& ids;
  const HeadOptions& options;
  HeadWants wants;
  const Tensor& inert;
};

class LogProbsFunction : public torch::autograd::Function<LogProbsFunction> {
 public:
  static variable_list forward(torch::autograd::AutogradContext* ctx, const Tensor& hidden,
                               const Tensor& weight, const std::optional<Tensor>& bias,
                               const Request& request) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Head head{hidden, weight, bias.value_or(Tensor())};
    auto call = c10::make_intrusive<SavedCall>();
    call->vocab_size = CheckHead(head, request.options);
    call->head = ReadableHead(head);
    call->options = request.options;
    call->wants = request.wants;
    call->order = RowOrder(request.inert, request.ids.size(0));
    call->pass = ReadStats(call->head, request.ids, request.options, call->vocab_size, call->order);
    const LogProbs found = Restored(call->order, LogProbsOf(call->pass));
    const variable_list out = {found.support.clone(), found.tail_mass.clone(), found.entropy.clone(),
                               found.tail_square.clone()};
    ctx->mark_non_differentiable({out[3]});
    ctx->saved_data["type"] = static_cast<int64_t>(hidden.scalar_type());
    ctx->saved_data["call"] = c10::IValue::make_capsule(std::move(call));
    return out;
  }

  static variable_list backward(torch::autograd::AutogradContext* ctx, const variable_list& gradients) {
    const auto holder = ctx->saved_data["call"].toCapsule();
    const auto& call = static_cast<const SavedCall&>(*holder);
    TokenPass pass = call.pass;
    FillGradientParts(call.order.Sorted(gradients[0]), call.order.Sorted(gradients[1]),
                      call.order.Sorted(gradients[2]), &pass);
    const HeadPassResult result = Backward(call, pass);
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["type"].toInt());
    variable_list out(4);
    const Tensor* found[] = {&result.hidden_gradient, &result.weight_gradient, &result.bias_gradient};
    for (size_t i = 0; i < 3; ++i) {
      if (found[i]->defined()) out[i] = found[i]->to(type);
    }
    return out;
  }
};

}  // namespace

LogProbs ComputeLogProbs(const Head& head, const at::Tensor& ids, const HeadOptions& options,
                         const at::Tensor& inert) {
  const HeadWants wants = WantsOf(head);
  if (wants.any()) {
    const auto bias = head.bias.defined() ? std::optional(head.bias) : std::nullopt;
    const variable_list v =
        LogProbsFunction::apply(head.hidden, head.weight, bias, Request{ids, options, wants, inert});
    return {v[0], v[1], v[3], v[2]};
  }
  const int64_t vocab_size = CheckHead(head, options);
  const RowOrder order(inert, ids.size(0));
  return Restored(order, LogProbsOf(ReadStats(ReadableHead(head), ids, options, vocab_size, order)));
}

}  // namespace augur
