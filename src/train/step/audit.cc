#include "train/step/audit.h"

#include "base/clock.h"
#include "kernels/head/decide.h"
#include "ops/typed_data.h"
#include "train/step/token_scores.h"

namespace augur {

Audit::Audit(const Model& model, const StepLoss& loss) : model_(model), loss_(loss) {}

void Audit::See(const MicroBatch& batch, const PolicyLoss& out) {
  const at::Tensor divergence = out.divergence.cpu().contiguous(), flags = out.flags.cpu().contiguous();
  const float* d = ConstData<float>(divergence);
  const uint8_t* bits = ConstData<uint8_t>(flags);
  for (const TrainSample& sample : batch.samples) {
    const size_t before = tokens_.size();
    for (int64_t t = 0; t < sample.tokens(); ++t) {
      if (!(bits[t] & kOutside)) continue;
      tokens_.push_back({sample_tokens_ + static_cast<size_t>(t), d[t], (bits[t] & kKept) != 0,
                         (bits[t] & kDisagrees) != 0});
    }
    if (tokens_.size() > before) {
      samples_.push_back(sample);
      sample_tokens_ += static_cast<size_t>(sample.tokens());
    }
    d += sample.tokens();
    bits += sample.tokens();
  }
}

void Audit::Finish(StepMetrics* metrics) {
  const auto start = Clock::now();
  metrics->Set("audit/outside", static_cast<double>(tokens_.size()));
  if (!tokens_.empty()) {
    const TokenScores after = ScoreTokens(model_, samples_, {&loss_.rule, 1}, loss_).front();
    for (const Token& token : tokens_) {
      const double change = after.divergence[token.place] - token.divergence;
      if (token.keep) {
        metrics->AddMean("audit/unsafe_keep", change > 0, 1);
        metrics->AddMean("audit/contraction", change < 0, 1);
      }
      metrics->AddMean("audit/delta_divergence", change, 1);
      metrics->AddMean("audit/disagree", token.disagree, 1);
    }
  }
  metrics->Set("timing_s/audit", SecondsSince(start));
}

}  // namespace augur
