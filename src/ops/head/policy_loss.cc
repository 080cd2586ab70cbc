// Registers augur::policy_loss with its backward.
#include "ops/head/policy_loss.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>

#include "base/error.h"
#include "ops/head/logits_policy_loss.h"
#include "ops/value_error.h"

namespace augur {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using PolicyLossOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                                     Tensor, Tensor, Tensor, Tensor, Tensor>;

PolicyLossOutputs PolicyLossForwardOp(const Tensor& logits, const Tensor& support_ids,
                                      const Tensor& support_logprobs, const Tensor& advantages,
                                      const OptionalTensor& weights, const OptionalTensor& reference_logprobs,
                                      std::string_view rule, double temperature, c10::SymInt vocab_size,
                                      double softcap, double entropy_bonus, double kl_coef,
                                      std::string_view reference_kl, bool validate) {
  return ReportingValueErrors([&]() -> PolicyLossOutputs {
    const RecordedTokens recorded{support_ids, support_logprobs, advantages, weights.value_or(Tensor()),
                                  reference_logprobs.value_or(Tensor())};
    const LossOptions options{temperature, vocab_size.expect_int(),        softcap, entropy_bonus,
                              kl_coef,     ParseReferenceKl(reference_kl), validate};
    const PolicyLossForward out = PolicyLossForwardImpl(ParseRule(rule), logits, recorded, options);
    const PolicyLoss& r = out.result;
    // Copied: an output of an operator must not be a view of another.
    return {r.loss,           r.policy.sampled().contiguous(),
            r.policy.entropy, r.ratio,
            r.divergence,     r.direction,
            r.keep,           r.flags,
            r.sums,           out.log_sum_exp,
            out.dense,        out.entropy_weight,
            out.sparse,       out.support};
  });
}

PolicyLossOutputs ForwardMeta(const Tensor& logits, const Tensor& support_ids, const Tensor&, const Tensor&,
                              const OptionalTensor&, const OptionalTensor&, std::string_view, double,
                              c10::SymInt, double, double, double, std::string_view, bool) {
  const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto make = [&](c10::SymIntArrayRef shape, at::ScalarType dtype) {
    return at::empty_symint(shape, logits.options().dtype(dtype));
  };
  const auto token = [&](at::ScalarType dtype) { return make({logits.sym_size(0)}, dtype); };
  const std::vector<c10::SymInt> support = {logits.sym_size(0), support_ids.sym_size(1)};
  return {make({}, type),
          token(type),
          token(type),
          token(type),
          token(type),
          token(type),
          token(at::kBool),
          token(at::kByte),
          make({c10::SymInt(kDecisionSums)}, at::kDouble),
          token(type),
          token(type),
          token(type),
          make(support, type),
          make(support, at::kInt)};
}

Tensor PolicyLossBackwardOp(const Tensor& grad_loss, const Tensor& logits, const Tensor& support,
                            const Tensor& log_sum_exp, const Tensor& entropy, const Tensor& dense,
                            const Tensor& entropy_weight, const Tensor& sparse, double temperature,
                            c10::SymInt vocab_size, double softcap) {
  return ReportingValueErrors([&] {
    return PolicyLossBackwardImpl(grad_loss, logits, support, log_sum_exp, entropy, dense, entropy_weight,
                                  sparse, temperature, vocab_size.expect_int(), softcap);
  });
}

Tensor BackwardMeta(const Tensor&, const Tensor& logits, const Tensor&, const Tensor&, const Tensor&,
                    const Tensor&, const Tensor&, const Tensor&, double, c10::SymInt, double) {
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

auto ForwardOperator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("augur::policy_loss", "")
                             .typed<decltype(PolicyLossForwardOp)>();
  return op;
}

auto BackwardOperator() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("augur::policy_loss_backward", "")
                             .typed<decltype(PolicyLossBackwardOp)>();
  return op;
}

// Only `loss`, the first output, is differentiable, and only in the logits.
class PolicyLossFunction : public torch::autograd::Function<PolicyLossFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const Tensor& logits,
                                                const Tensor& support_ids, const Tensor& support_logprobs,
                                                const Tensor& advantages, const OptionalTensor& weights,
                                                const OptionalTensor& reference_logprobs,
                                                std::string_view rule, double temperature,
                                                c10::SymInt vocab_size, double softcap, double entropy_bonus,
                                                double kl_coef, std::string_view reference_kl,
                                                bool validate) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const PolicyLossOutputs out = ForwardOperator().call(
        logits, support_ids, support_logprobs, advantages, weights, reference_logprobs, rule, temperature,
        vocab_size, softcap, entropy_bonus, kl_coef, reference_kl, validate);
    const auto all = std::apply([](const auto&... t) { return torch::autograd::variable_list{t...}; }, out);
    ctx->save_for_backward({logits, std::get<13>(out), std::get<9>(out), std::get<2>(out), std::get<10>(out),
                            std::get<11>(out), std::get<12>(out)});
    ctx->saved_data["temperature"] = temperature;
    ctx->saved_data["vocab_size"] = vocab_size;
    ctx->saved_data["softcap"] = softcap;
    ctx->mark_non_differentiable({all.begin() + 1, all.end()});
    return all;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = ctx->get_saved_variables();
    torch::autograd::variable_list out(14);
    out[0] = BackwardOperator().call(gradients[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5],
                                     saved[6], ctx->saved_data["temperature"].toDouble(),
                                     ctx->saved_data["vocab_size"].toSymInt(),
                                     ctx->saved_data["softcap"].toDouble());
    return out;
  }
};

PolicyLossOutputs ForwardAutograd(const Tensor& logits, const Tensor& support_ids,
                                  const Tensor& support_logprobs, const Tensor& advantages,
                                  const OptionalTensor& weights, const OptionalTensor& reference_logprobs,
                                  std::string_view rule, double temperature, c10::SymInt vocab_size,
                                  double softcap, double entropy_bonus, double kl_coef,
                                  std::string_view reference_kl, bool validate) {
  const auto v = PolicyLossFunction::apply(logits, support_ids, support_logprobs, advantages, weights,
                                           reference_logprobs, rule, temperature, vocab_size, softcap,
                                           entropy_bonus, kl_coef, reference_kl, validate);
  return {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13]};
}

}  // namespace

ReferenceKl ParseReferenceKl(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames = {"none", "k1", "k2", "k3"};
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<ReferenceKl>(i);
  }
  throw UnknownName("reference_kl", "estimator", name, kNames);
}

}  // namespace augur

TORCH_LIBRARY_IMPL(augur, CPU, m) {
  m.impl("policy_loss", augur::PolicyLossForwardOp);
  m.impl("policy_loss_backward", augur::PolicyLossBackwardOp);
}
TORCH_LIBRARY_IMPL(augur, CUDA, m) {
  m.impl("policy_loss", augur::PolicyLossForwardOp);
  m.impl("policy_loss_backward", augur::PolicyLossBackwardOp);
}
TORCH_LIBRARY_IMPL(augur, Meta, m) {
  m.impl("policy_loss", augur::ForwardMeta);
  m.impl("policy_loss_backward", augur::BackwardMeta);
}
TORCH_LIBRARY_IMPL(augur, Autograd, m) { m.impl("policy_loss", augur::ForwardAutograd); }
