#include "train/step/token_scores.h"

#include "ops/head/decide.h"
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
  const int64_t vocab_size = loss.logits.vocab_size > 0 ? loss.logits.vocab_size : model.head.size(0);
  std::vector<TokenScores> scores(rules.size());
  ForEachScored(model, samples, loss, [&](const MicroBatch& batch, const LogProbs& policy) {
    for (size_t r = 0; r < rules.size(); ++r) {
      const Decisions out =
          Decide(rules[r], batch.recorded.support_logprobs, policy.support, batch.recorded.advantages,
                 vocab_size, {policy.tail_square, at::Tensor(), policy.tail_mass, at::Tensor()},
                 /*validate=*/false);
      Append(out.ratio, &scores[r].ratio);
      Append(out.divergence, &scores[r].divergence);
      Append(out.direction, &scores[r].direction);
      Append(out.flags, &scores[r].flags);
    }
  });
  return scores;
}

}  // namespace augur
