#include "train/step/audit.h"

#include "base/clock.h"
#include "kernels/head/decide.h"
#include "ops/parallel/ranks.h"
#include "ops/typed_data.h"
#include "train/step/token_scores.h"

namespace augur {
namespace {

// Over outside tokens, those of all ranks.
struct Sums {
  double outside = 0, kept = 0, grew = 0, fell = 0;  // the latter two of the kept
  double change = 0, disagree = 0;
};

}  // namespace

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
  Sums s;
  if (!tokens_.empty() || !Ranks::World().alone()) {  // every rank makes as many passes
    const TokenScores after = ScoreTokens(model_, samples_, {&loss_.terms.rule, 1}, loss_).front();
    for (const Token& token : tokens_) {
      const double change = after.divergence[token.place] - token.divergence;
      ++s.outside;
      s.kept += token.keep;
      s.grew += token.keep && change > 0;
      s.fell += token.keep && change < 0;
      s.change += change;
      s.disagree += token.disagree;
    }
  }
  Ranks::World().Sum(&s.outside, sizeof(Sums) / sizeof(double));
  metrics->Set("audit/outside", s.outside);
  metrics->AddMean("audit/unsafe_keep", s.grew, s.kept);
  metrics->AddMean("audit/contraction", s.fell, s.kept);
  metrics->AddMean("audit/delta_divergence", s.change, s.outside);
  metrics->AddMean("audit/disagree", s.disagree, s.outside);
  metrics->Set("timing_s/audit", SecondsSince(start));
}

}  // namespace augur
