// Registers augur::policy_loss with its backward.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <functional>

#include "ops/head/logits_policy_loss.h"
#include "ops/head/loss_outputs.h"
#include "ops/value_error.h"

namespace augur {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::variable_list;

// The operator's arguments in their order.
struct PolicyLossArguments {
  const Tensor &logits, &support_ids, &support_logprobs, &advantages;
  const OptionalTensor &weights, &reference_logprobs;
  std::string_view rule;
  double temperature;
  c10::SymInt vocab_size;
  double softcap, entropy_bonus, kl_coef;
  std::string_view reference_kl;
  bool validate;
};
using PolicyLossSignature = PolicyLossArguments(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                const OptionalTensor&, const OptionalTensor&,
                                                std::string_view, double, c10::SymInt, double, double, double,
                                                std::string_view, bool);

// What backward needs of the forward, behind the outputs that a caller sees.
struct PolicyLossSaved {
  Tensor log_sum_exp, dense, entropy_weight, support;

  auto Tuple() const { return std::make_tuple(log_sum_exp, dense, entropy_weight, support); }
};

struct PolicyLossOutputs {
  LossOutputs loss;
  PolicyLossSaved saved;

  auto Tuple() const { return std::tuple_cat(loss.Tuple(), saved.Tuple()); }
};
using PolicyLossTuple = decltype(std::declval<PolicyLossOutputs>().Tuple());

PolicyLossOutputs RunPolicyLoss(const PolicyLossArguments& a) {
  const RecordedTokens recorded{a.support_ids, a.support_logprobs, a.advantages, a.weights.value_or(Tensor()),
                                a.reference_logprobs.value_or(Tensor())};
  const LossTerms terms{ParseRule(a.rule), a.entropy_bonus, a.kl_coef,
                        ParseName<ReferenceKl>("reference_kl", "estimator", a.reference_kl)};
  const LogitOptions options{a.temperature, a.vocab_size.expect_int(), a.softcap, a.validate};
  const PolicyLossForward out = PolicyLossForwardImpl(terms, a.logits, recorded, options);
  return {OutputsOf(out.result),
          {out.saved.log_sum_exp, out.saved.dense, out.saved.entropy_weight, out.saved.support}};
}

PolicyLossOutputs PolicyLossMeta(const PolicyLossArguments& a) {
  PolicyLossOutputs out{MetaOutputsOf(a.logits), {}};
  for (Tensor* x : {&out.saved.log_sum_exp, &out.saved.dense, &out.saved.entropy_weight}) {
    *x = at::empty_symint(out.loss.entropy.sym_sizes(), out.loss.entropy.options());
  }
  out.saved.support =
      at::empty_symint({a.logits.sym_size(0), a.support_ids.sym_size(1)}, a.logits.options().dtype(at::kInt));
  return out;
}

Tensor PolicyLossBackwardOp(const Tensor& grad_loss, const Tensor& logits, const Tensor& support,
                            const Tensor& log_sum_exp, const Tensor& entropy, const Tensor& dense,
                            const Tensor& entropy_weight, double temperature, c10::SymInt vocab_size,
                            double softcap) {
  return ReportingValueErrors(logits, [&] {
    return PolicyLossBackwardImpl(grad_loss, logits, {log_sum_exp, entropy, dense, entropy_weight, support},
                                  {temperature, vocab_size.expect_int(), softcap});
  });
}

Tensor PolicyLossBackwardMeta(const Tensor&, const Tensor& logits, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, const Tensor&, double, c10::SymInt, double) {
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

// Only `loss`, the first output, is differentiable, and only in the logits.
class PolicyLossFunction : public torch::autograd::Function<PolicyLossFunction> {
 public:
  static variable_list forward(torch::autograd::AutogradContext* ctx, const Tensor& logits,
                               const PolicyLossArguments& a, const std::function<PolicyLossTuple()>& call) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const PolicyLossTuple outputs = call();
    const auto& [loss, logprobs, entropy, ratio, divergence, direction, keep, flags, sums, log_sum_exp, dense,
                 entropy_weight, support] = outputs;
    ctx->save_for_backward({logits, support, log_sum_exp, entropy, dense, entropy_weight});
    ctx->saved_data["temperature"] = a.temperature;
    ctx->saved_data["vocab_size"] = a.vocab_size;
    ctx->saved_data["softcap"] = a.softcap;
    const variable_list all = ListOf(outputs);
    ctx->mark_non_differentiable({all.begin() + 1, all.end()});
    return all;
  }

  static variable_list backward(torch::autograd::AutogradContext* ctx, variable_list gradients) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("augur::policy_loss_backward", "")
                               .typed<decltype(PolicyLossBackwardOp)>();
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &logits = saved[0], &support = saved[1], &log_sum_exp = saved[2], &entropy = saved[3];
    const Tensor &dense = saved[4], &entropy_weight = saved[5];
    variable_list out(3);
    out[0] = op.call(gradients[0], logits, support, log_sum_exp, entropy, dense, entropy_weight,
                     ctx->saved_data["temperature"].toDouble(), ctx->saved_data["vocab_size"].toSymInt(),
                     ctx->saved_data["softcap"].toDouble());
    return out;
  }
};

template <typename>
struct PolicyLossOperators;

template <typename... Args>
struct PolicyLossOperators<PolicyLossArguments(Args...)> {
  static PolicyLossTuple Loss(Args... args) {
    return ReportingValueErrors(std::get<0>(std::tie(args...)),
                                [&] { return RunPolicyLoss(PolicyLossArguments{args...}).Tuple(); });
  }

  static PolicyLossTuple LossMeta(Args... args) {
    return PolicyLossMeta(PolicyLossArguments{args...}).Tuple();
  }

  static PolicyLossTuple LossAutograd(Args... args) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("augur::policy_loss", "")
                               .template typed<decltype(Loss)>();
    const PolicyLossArguments a{args...};
    return TupleOf<PolicyLossTuple>(
        PolicyLossFunction::apply(a.logits, a, std::function([&] { return op.call(args...); })));
  }
};

using LogitsLoss = PolicyLossOperators<PolicyLossSignature>;

}  // namespace
}  // namespace augur

TORCH_LIBRARY_IMPL(augur, CPU, m) {
  m.impl("policy_loss", augur::LogitsLoss::Loss);
  m.impl("policy_loss_backward", augur::PolicyLossBackwardOp);
}
TORCH_LIBRARY_IMPL(augur, CUDA, m) {
  m.impl("policy_loss", augur::LogitsLoss::Loss);
  m.impl("policy_loss_backward", augur::PolicyLossBackwardOp);
}
TORCH_LIBRARY_IMPL(augur, Meta, m) {
  m.impl("policy_loss", augur::LogitsLoss::LossMeta);
  m.impl("policy_loss_backward", augur::PolicyLossBackwardMeta);
}
TORCH_LIBRARY_IMPL(augur, Autograd, m) { m.impl("policy_loss", augur::LogitsLoss::LossAutograd); }
