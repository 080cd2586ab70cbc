#include "eval/parity.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/head/log_probs.h"

namespace augur {
namespace {

// log pi of the recorded supports: [T, columns] float32 on the CPU.
at::Tensor PolicyLogProbs(const Model& model, const ForwardOptions& forward, const Rollout& rollout) {
  std::vector<int32_t> tokens = rollout.prompt_tokens;
  tokens.insert(tokens.end(), rollout.tokens.begin(), rollout.tokens.end());
  const at::Device device = model.embedding.device();
  const PackedBatch batch = PackSequences({&tokens, 1}, device);
  const auto first = static_cast<int64_t>(rollout.prompt_tokens.size()) - 1;
  const auto count = static_cast<int64_t>(rollout.tokens.size());
  const at::Tensor hidden = Forward(model, batch, forward).hidden.narrow(0, first, count);
  const at::Tensor ids = at::tensor(rollout.support.ids, at::kInt).view({count, rollout.support.columns});
  return ComputeLogProbs({hidden, model.head, {}}, ids.to(device), {}).support.cpu().contiguous();
}

// The recorded experts by layer; those of the last token, which is not recorded, are the first ones.
Routing RoutingOf(const Rollout& rollout, at::Device device) {
  const RecordedRouting& from = rollout.routing;
  std::vector<uint8_t> experts = from.experts;
  for (int64_t i = 0; i < from.width(); ++i) {
    experts.push_back(static_cast<uint8_t>(i % from.experts_per_token));
  }
  const at::Tensor all = at::tensor(experts, at::kByte).view({-1, from.layers, from.experts_per_token});
  Routing routing;
  for (int64_t i = 0; i < from.layers; ++i) routing.push_back(all.select(1, i).to(at::kLong).to(device));
  return routing;
}

void Compare(const Rollout& rollout, const at::Tensor& policy, std::vector<double>* differences,
             std::vector<double>* divergences) {
  const int64_t columns = rollout.support.columns;
  const float* log_pi = policy.const_data_ptr<float>();
  const float* log_mu = rollout.support.logprobs.data();
  const int32_t* ids = rollout.support.ids.data();
  for (size_t t = 0; t < rollout.tokens.size(); ++t, ids += columns, log_mu += columns, log_pi += columns) {
    double divergence = 0;
    for (int64_t c = 0; c < columns; ++c) {
      if (ids[c] >= 0) divergence += std::exp(double{log_mu[c]}) * (double{log_mu[c]} - log_pi[c]);
    }
    differences->push_back(std::abs(double{log_mu[0]} - log_pi[0]));
    divergences->push_back(std::max(divergence, 0.0));
  }
}

}  // namespace

Parity MeasureParity(const Model& model, const ForwardOptions& forward, Engine& engine,
                     std::span<const GenerateRequest> prompts, int64_t tokens, uint64_t seed) {
  const at::NoGradGuard no_grad;
  SamplingOptions options;
  options.max_tokens = tokens;
  options.seed = seed;
  options.support = model.config.vocab_size - 1;  // all but the least likely token
  Parity parity;
  for (const Rollout& rollout : engine.Generate(prompts, options)) {
    if (rollout.finish == FinishReason::kFailed) throw Error("", rollout.error, "");
    Compare(rollout, PolicyLogProbs(model, forward, rollout), &parity.differences, &parity.divergences);
    if (rollout.routing.width() == 0) continue;
    const Routing routing = RoutingOf(rollout, model.embedding.device());
    ForwardOptions replaying = forward;
    replaying.replay = &routing;
    Compare(rollout, PolicyLogProbs(model, replaying, rollout), &parity.replayed_differences,
            &parity.replayed_divergences);
  }
  return parity;
}

double ShareAbove(const std::vector<double>& values, double bound) {
  if (values.empty()) return 0;
  const auto above = std::ranges::count_if(values, [&](double value) { return value > bound; });
  return static_cast<double>(above) / static_cast<double>(values.size());
}

}  // namespace augur
