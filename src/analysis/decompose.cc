#include "analysis/decompose.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "mask/coefficient.h"
#include "mask/reference.h"
#include "ops/head/log_probs.h"

namespace augur {
namespace {

constexpr size_t kStatesPerTensor = 3;  // master, first and second average, as Optimizer::State orders them
enum StateKind : size_t { kMaster, kFirst, kSecond };

at::Tensor FlattenState(const std::vector<at::Tensor>& state, StateKind kind) {
  std::vector<at::Tensor> parts;
  for (size_t i = kind; i < state.size(); i += kStatesPerTensor) {
    parts.push_back(state[i].reshape({-1}).to(at::kFloat));
  }
  return at::cat(parts);
}

struct TokenSupport {
  at::Tensor ids, behaviour;  // [m] the used columns
};

TokenSupport SupportOf(const TokenPlace& place, at::Device device) {
  const RecordedSupport& support = place.sample->rollout->support;
  const std::vector<float>& from = place.sample->anchor.empty() ? support.logprobs : place.sample->anchor;
  std::vector<int64_t> ids;
  std::vector<double> behaviour;
  for (int64_t c = 0; c < support.columns; ++c) {
    const auto at = static_cast<size_t>(place.position * support.columns + c);
    if (support.ids[at] < 0) continue;
    ids.push_back(support.ids[at]);
    behaviour.push_back(from[at]);
  }
  return {at::tensor(ids).to(device), at::tensor(behaviour, at::kDouble).to(device)};
}

// What the model makes of the token's support, with gradient: one row.
LogProbs LogProbsAt(const Model& model, const TokenPlace& place, const at::Tensor& ids,
                    const StepLoss& loss) {
  const Rollout& rollout = *place.sample->rollout;
  std::vector<int32_t> tokens = rollout.prompt_tokens;
  tokens.insert(tokens.end(), rollout.tokens.begin(),
                rollout.tokens.begin() + rollout.SampledPlaces()[place.position]);
  const std::vector<std::vector<int32_t>> sequences = {tokens};
  const PackedBatch batch = PackSequences(sequences, model.embedding.device());
  const at::Tensor hidden =
      Forward(model, batch, loss.forward).hidden.narrow(0, static_cast<int64_t>(tokens.size()) - 1, 1);
  return ComputeLogProbs({hidden, model.head, {}}, ids.unsqueeze(0), {.logits = loss.logits});
}

// A scalar whose gradient in the logits is that of the token's divergence from the recorded distribution.
at::Tensor WithSlopeOf(Proximity divergence, const LogProbs& now, const TokenSupport& support,
                       int64_t vocab_size) {
  const at::Tensor policy = now.support.select(0, 0).to(at::kDouble);
  const at::Tensor mu = support.behaviour.cpu(), pi = policy.detach().cpu().contiguous();
  const auto values = [](const at::Tensor& x) {
    return std::span<const double>(x.const_data_ptr<double>(), static_cast<size_t>(x.numel()));
  };
  const double tail = now.tail_mass.select(0, 0).item().toDouble();
  const LogitGradient gradient =
      ReferenceGradient(divergence, Support::kTopK, {values(mu), values(pi), 0, vocab_size, 0, tail});
  // The gradient adds up to 0 over the logits, so that the atoms' part of it brings the part everywhere
  // along.
  return (policy * at::tensor(gradient.at_atom, support.behaviour.options())).sum();
}

at::Tensor GradientOf(const Model& model, const at::Tensor& value) {
  const std::vector<at::Tensor> parameters = Parameters(model);
  return FlattenByName(model, torch::autograd::grad({value}, parameters, {}, /*retain_graph=*/true,
                                                    /*create_graph=*/false, /*allow_unused=*/true));
}

}  // namespace

at::Tensor UpdateTerms::Update() const { return momentum + gradient_rate * gradient + weight_decay; }

double UpdateTerms::MomentumCosine() const {
  const at::Tensor update = Update();
  const double norms = momentum.norm().item<double>() * update.norm().item<double>();
  return norms > 0 ? at::dot(momentum, update).item<double>() / norms : 0;
}

at::Tensor FlattenByName(const Model& model, const std::vector<at::Tensor>& by_parameter) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> parameters = Parameters(model);
  std::vector<at::Tensor> parts;
  for (const StoredTensor& stored : StoredTensors(model)) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].is_same(stored.parameter)) continue;
      const at::Tensor& value = by_parameter[i];
      const int64_t size = stored.Part(parameters[i]).numel();
      parts.push_back(value.defined() ? stored.Part(value).reshape({-1}).to(at::kFloat)
                                      : at::zeros({size}, parameters[i].options().dtype(at::kFloat)));
    }
  }
  return at::cat(parts);
}

UpdateTerms MakeUpdateTerms(const StateCopy& before, const Optimizer& optimizer,
                            const OptimizerOptions& options, const at::Tensor& gradient,
                            const UpdateResult& result, double lr) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> after;
  for (const StateTensor& state : optimizer.State()) after.push_back(state.tensor);
  const auto t = static_cast<double>(optimizer.updates());
  const double bias1 = 1 - std::pow(options.beta1, t), bias2 = 1 - std::pow(options.beta2, t);
  const double clip = options.clip > 0 ? std::min(1.0, options.clip / (result.grad_norm + 1e-6)) : 1;
  const at::Tensor second = FlattenState(after, kSecond);
  const at::Tensor rate = -(lr / bias1) / ((second / bias2).sqrt() + options.eps);
  UpdateTerms terms;
  terms.momentum = rate * options.beta1 * FlattenState(before.state(), kFirst);
  terms.gradient_rate = rate * ((1 - options.beta1) * clip);
  terms.gradient = gradient;
  terms.weight_decay = FlattenState(before.state(), kMaster) * (-lr * options.weight_decay);
  return terms;
}

ChangeParts DecomposeChange(const Model& model, const StepLoss& loss, Proximity divergence,
                            const TokenPlace& place, const UpdateTerms& terms) {
  const TokenSupport support = SupportOf(place, model.embedding.device());
  const LogProbs now = LogProbsAt(model, place, support.ids, loss);
  const at::Tensor policy = now.support.select(0, 0).to(at::kDouble);
  const at::Tensor sampled = policy.select(0, 0);
  const double log_ratio = sampled.item<double>() - support.behaviour[0].item<double>();
  const double ratio = std::exp(std::clamp(log_ratio, -kLogRatioLimit, kLogRatioLimit));
  const double mu = std::exp(support.behaviour[0].item<double>());
  const double coefficient = Coefficient(loss.terms.rule, ratio, mu, place.sample->advantage);
  const int64_t vocab_size = loss.logits.vocab_size > 0 ? loss.logits.vocab_size : model.head.size(0);
  const at::Tensor slope = GradientOf(model, WithSlopeOf(divergence, now, support, vocab_size));
  const at::Tensor own = GradientOf(model, sampled * (-place.weight * coefficient * place.sample->advantage));
  const at::NoGradGuard no_grad;
  const auto part = [&](const at::Tensor& term) { return at::dot(slope, term).item<double>(); };
  ChangeParts parts;
  parts.own = part(terms.gradient_rate * own);
  parts.others = part(terms.gradient_rate * terms.gradient) - parts.own;
  parts.momentum = part(terms.momentum);
  parts.weight_decay = part(terms.weight_decay);
  return parts;
}

}  // namespace augur
