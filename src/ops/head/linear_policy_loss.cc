// Registers augur::linear_policy_loss with its autograd, and offers it to C++.
#include "ops/head/linear_policy_loss.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <array>
#include <functional>

#include "kernels/head/scale.h"
#include "ops/head/head_pass.h"
#include "ops/head/loss_outputs.h"
#include "ops/launch.h"
#include "ops/value_error.h"

namespace augur {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using WantedGradient = std::array<bool, 3>;  // gradients of hidden, weight, bias
using LossTuple = decltype(std::declval<LossOutputs>().Tuple());

// In the order of the schema, behind LossOutputs; an empty tensor where not wanted.
struct HeadLossGradients {
  Tensor hidden, weight, bias;

  auto Tuple() const { return std::make_tuple(hidden, weight, bias); }
};
using GradientTuple = decltype(std::tuple_cat(LossTuple(), std::declval<HeadLossGradients>().Tuple()));

struct Arguments {
  LossTerms terms;
  Head head;
  RecordedTokens recorded;
  HeadOptions options;
};

// The one place that knows the operators' arguments in their order.
Arguments Collect(const Tensor& hidden, const Tensor& weight, const OptionalTensor& bias,
                  const Tensor& support_ids, const Tensor& support_logprobs, const Tensor& advantages,
                  const OptionalTensor& weights, const OptionalTensor& reference_logprobs,
                  std::string_view rule, double temperature, c10::SymInt vocab_size, double softcap,
                  double entropy_bonus, double kl_coef, std::string_view reference_kl, bool validate,
                  c10::SymInt chunk, bool accumulate_float32, double grad_scale, std::string_view group,
                  c10::SymInt vocab_start) {
  Arguments a{{ParseRule(rule), entropy_bonus, kl_coef,
               ParseName<ReferenceKl>("reference_kl", "estimator", reference_kl)},
              {hidden, weight, bias.value_or(Tensor())},
              {support_ids, support_logprobs, advantages, weights.value_or(Tensor()),
               reference_logprobs.value_or(Tensor())},
              {}};
  a.options.logits = {temperature, vocab_size.expect_int(), softcap, validate};
  a.options.chunk = chunk.expect_int();
  a.options.accumulate_float32 = accumulate_float32;
  a.options.grad_scale = grad_scale;
  a.options.group = group;
  a.options.vocab_start = vocab_start.expect_int();
  return a;
}

HeadPassResult RunArguments(const Arguments& a, const WantedGradient& wanted) {
  return RunHeadPass(a.terms, a.head, a.recorded, a.options, {wanted[0], wanted[1], wanted[2]});
}

HeadLossGradients GradientsOf(const HeadPassResult& r, const Tensor& hidden) {
  const auto or_empty = [&](const Tensor& x) { return x.defined() ? x : at::empty({0}, hidden.options()); };
  return {or_empty(r.hidden_gradient), or_empty(r.weight_gradient), or_empty(r.bias_gradient)};
}

// A gradient like x where wanted, else an empty tensor.
Tensor MetaGradient(const Tensor& hidden, const OptionalTensor& x, bool wanted) {
  if (wanted) return at::empty_symint(x->sym_sizes(), x->options());
  return at::empty({0}, hidden.options());
}

// The outputs, then the three gradients.
using GradientCall = std::function<torch::autograd::variable_list(const WantedGradient&)>;

// gradient * factor, in the gradient's own memory.
Tensor ScaleInPlace(const Tensor& gradient, const Tensor& factor) {
  const bool traced =
      gradient.key_set().has(c10::DispatchKey::Python);  // torch.compile: there is no memory yet
  if (!gradient.is_cuda() || gradient.scalar_type() == at::kDouble || traced) return gradient.mul_(factor);
  const Tensor scale = factor.to(at::kFloat).contiguous();
  ScaleCuda(gradient.mutable_data_ptr(), ElementTypeOf(gradient), gradient.numel(),
            scale.const_data_ptr<float>(), CurrentStream(gradient));
  return gradient;
}

// Only the loss is differentiable. Its gradients stand ready after forward; backward scales them.
class LinearPolicyLossFunction : public torch::autograd::Function<LinearPolicyLossFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, const Tensor& hidden,
                                                const Tensor& weight, const OptionalTensor& bias,
                                                const GradientCall& call) {
    const WantedGradient wanted = {hidden.requires_grad(), weight.requires_grad(),
                                   bias && bias->requires_grad()};
    const at::AutoDispatchBelowADInplaceOrView guard;
    const torch::autograd::variable_list all = call(wanted);
    ctx->save_for_backward({all.end() - 3, all.end()});
    ctx->saved_data["wanted"] = c10::List<bool>({wanted[0], wanted[1], wanted[2]});
    const torch::autograd::variable_list visible(all.begin(), all.end() - 3);
    ctx->mark_non_differentiable({visible.begin() + 1, visible.end()});
    return visible;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    if (at::GradMode::is_enabled()) {
      TORCH_CHECK_VALUE(false, Error("linear_policy_loss", "has no second derivatives",
                                     "call backward without create_graph")
                                   .what());
    }
    // Nobody else holds the gradients unless the graph is kept for another backward.
    const bool in_place = !torch::autograd::get_current_graph_task_keep_graph();
    const auto wanted = ctx->saved_data["wanted"].toBoolList();
    const auto saved = ctx->get_saved_variables();
    torch::autograd::variable_list out(4);
    for (size_t i = 0; i < 3; ++i) {
      if (!wanted[i]) continue;
      out[i] = in_place ? ScaleInPlace(saved[i], gradients[0]) : saved[i].mul(gradients[0]);
    }
    return out;
  }
};

template <typename Signature>
struct Operators;

template <typename... Args>
struct Operators<Arguments(Args...)> {
  static LossTuple Loss(Args... args) {
    return ReportingValueErrors(std::get<0>(std::tie(args...)),
                                [&] { return OutputsOf(RunArguments(Collect(args...), {}).loss).Tuple(); });
  }

  static GradientTuple LossAndGradients(Args... args, WantedGradient wanted) {
    return ReportingValueErrors(std::get<0>(std::tie(args...)), [&] {
      const Arguments a = Collect(args...);
      const HeadPassResult r = RunArguments(a, wanted);
      return std::tuple_cat(OutputsOf(r.loss).Tuple(), GradientsOf(r, a.head.hidden).Tuple());
    });
  }

  static LossTuple LossMeta(Args... args) { return MetaOutputsOf(std::get<0>(std::tie(args...))).Tuple(); }

  static GradientTuple LossAndGradientsMeta(Args... args, WantedGradient wanted) {
    const auto all = std::tie(args...);
    const Tensor& hidden = std::get<0>(all);
    return std::tuple_cat(MetaOutputsOf(hidden).Tuple(),
                          std::make_tuple(MetaGradient(hidden, hidden, wanted[0]),
                                          MetaGradient(hidden, std::get<1>(all), wanted[1]),
                                          MetaGradient(hidden, std::get<2>(all), wanted[2])));
  }

  static LossTuple LossAutograd(Args... args) {
    const auto all = std::tie(args...);
    const Tensor &hidden = std::get<0>(all), &weight = std::get<1>(all);
    const OptionalTensor& bias = std::get<2>(all);
    const bool differentiates =
        at::GradMode::is_enabled() &&
        (hidden.requires_grad() || weight.requires_grad() || (bias && bias->requires_grad()));
    if (!differentiates) {
      const at::AutoDispatchBelowADInplaceOrView guard;
      return LossOperator().call(args...);
    }
    const GradientCall call = [&](const WantedGradient& wanted) {
      return ListOf(GradientOperator().call(args..., wanted));
    };
    return TupleOf<LossTuple>(LinearPolicyLossFunction::apply(hidden, weight, bias, call));
  }

  static auto LossOperator() {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("augur::linear_policy_loss", "")
                               .template typed<decltype(Loss)>();
    return op;
  }

  static auto GradientOperator() {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("augur::linear_policy_loss_gradients", "")
                               .template typed<decltype(LossAndGradients)>();
    return op;
  }
};

using HeadOperators = Operators<decltype(Collect)>;

}  // namespace

PolicyLoss ComputeLinearPolicyLoss(const LossTerms& terms, const Head& head, const RecordedTokens& recorded,
                                   const HeadOptions& options) {
  if (!WantsOf(head).any()) return RunHeadPass(terms, head, recorded, options, {}).loss;
  PolicyLoss result;
  const GradientCall call = [&](const WantedGradient& wanted) {
    const HeadPassResult r = RunHeadPass(terms, head, recorded, options, {wanted[0], wanted[1], wanted[2]});
    result = r.loss;
    const HeadLossGradients gradients = GradientsOf(r, head.hidden);
    return torch::autograd::variable_list{r.loss.loss, gradients.hidden, gradients.weight, gradients.bias};
  };
  const OptionalTensor bias = head.bias.defined() ? OptionalTensor(head.bias) : std::nullopt;
  result.loss = LinearPolicyLossFunction::apply(head.hidden, head.weight, bias, call)[0];
  return result;
}

}  // namespace augur

TORCH_LIBRARY_IMPL(augur, CPU, m) {
  m.impl("linear_policy_loss", augur::HeadOperators::Loss);
  m.impl("linear_policy_loss_gradients", augur::HeadOperators::LossAndGradients);
}
TORCH_LIBRARY_IMPL(augur, CUDA, m) {
  m.impl("linear_policy_loss", augur::HeadOperators::Loss);
  m.impl("linear_policy_loss_gradients", augur::HeadOperators::LossAndGradients);
}
TORCH_LIBRARY_IMPL(augur, Meta, m) {
  m.impl("linear_policy_loss", augur::HeadOperators::LossMeta);
  m.impl("linear_policy_loss_gradients", augur::HeadOperators::LossAndGradientsMeta);
}
TORCH_LIBRARY_IMPL(augur, Autograd, m) { m.impl("linear_policy_loss", augur::HeadOperators::LossAutograd); }
