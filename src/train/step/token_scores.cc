#include "train/step/token_scores.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/index_select.h>

#include "ops/linear_policy_loss.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

template <typename T>
void Append(const at::Tensor& values, std::vector<T>* out) {
  const at::Tensor here = values.cpu().contiguous();
  const T* data = ConstData<T>(here);
  out->insert(out->end(), data, data + here.numel());
}

}  // namespace

std::vector<TokenScores> ScoreTokens(const Model& model, std::span<const TrainSample> samples,
                                     std::span<const MaskRule> rules, const StepLoss& loss) {
  const at::NoGradGuard no_grad;
  HeadOptions options;
  options.loss.temperature = loss.temperature;
  options.loss.vocab_size = loss.vocabulary;
  options.loss.validate = false;  // the engine of this process recorded the values
  std::vector<TokenScores> scores(rules.size());
  const std::vector<size_t> cuts = SplitByTokens(samples, loss.micro_tokens);
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const auto part = samples.subspan(cuts[i], cuts[i + 1] - cuts[i]);
    const std::vector<float> weights = SampleWeights(Aggregation::kTokenSum, part, 0);
    const MicroBatch batch = MakeMicroBatch(part, weights, model.embedding.device());
    const at::Tensor hidden = Forward(model, batch.packed, loss.forward).hidden;
    for (size_t r = 0; r < rules.size(); ++r) {
      const PolicyLoss out =
          ComputeLinearPolicyLoss(rules[r], {hidden, model.head, {}}, batch.recorded, options);
      Append(out.ratio, &scores[r].ratio);
      Append(out.divergence, &scores[r].divergence);
      Append(out.direction, &scores[r].direction);
      Append(out.flags, &scores[r].flags);
    }
  }
  return scores;
}

}  // namespace augur
