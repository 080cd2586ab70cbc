#include "eval/parity.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/forward.h"

namespace augur {
namespace {

// log pi of every token of the vocabulary at each response position: [T, vocab] float32 on the CPU.
at::Tensor PolicyLogProbs(const Model& model, const Rollout& rollout) {
  std::vector<int32_t> tokens = rollout.prompt_tokens;
  tokens.insert(tokens.end(), rollout.tokens.begin(), rollout.tokens.end());
  const PackedBatch batch = PackSequences({&tokens, 1}, model.embedding.device());
  const auto first = static_cast<int64_t>(rollout.prompt_tokens.size()) - 1;
  const at::Tensor hidden =
      Forward(model, batch).hidden.narrow(0, first, static_cast<int64_t>(rollout.tokens.size()));
  return at::log_softmax(at::matmul(hidden.to(at::kFloat), model.head.to(at::kFloat).t()), 1)
      .cpu()
      .contiguous();
}

void Compare(const Rollout& rollout, const at::Tensor& policy, Parity* parity) {
  const int64_t columns = rollout.support.columns, vocab = policy.size(1);
  const float* log_pi = policy.const_data_ptr<float>();
  for (size_t t = 0; t < rollout.tokens.size(); ++t, log_pi += vocab) {
    const int32_t* ids = rollout.support.ids.data() + t * static_cast<size_t>(columns);
    const float* log_mu = rollout.support.logprobs.data() + t * static_cast<size_t>(columns);
    double divergence = 0;
    for (int64_t c = 0; c < columns; ++c) {
      if (ids[c] < 0) continue;
      const double mu = log_mu[c];
      divergence += std::exp(mu) * (mu - log_pi[ids[c]]);
    }
    parity->differences.push_back(std::abs(double{log_mu[0]} - log_pi[ids[0]]));
    parity->divergences.push_back(std::max(divergence, 0.0));
  }
}

}  // namespace

Parity MeasureParity(const Model& model, Engine& engine, std::span<const GenerateRequest> prompts,
                     int64_t tokens, uint64_t seed) {
  const at::NoGradGuard no_grad;
  SamplingOptions options;
  options.max_tokens = tokens;
  options.seed = seed;
  options.support = model.config.vocab_size - 1;  // all but the least likely token
  Parity parity;
  for (const Rollout& rollout : engine.Generate(prompts, options)) {
    if (rollout.finish == FinishReason::kFailed) throw Error("", rollout.error, "");
    Compare(rollout, PolicyLogProbs(model, rollout), &parity);
  }
  return parity;
}

double ShareAbove(const std::vector<double>& values, double bound) {
  if (values.empty()) return 0;
  const auto above = std::ranges::count_if(values, [&](double value) { return value > bound; });
  return static_cast<double>(above) / static_cast<double>(values.size());
}

}  // namespace augur
