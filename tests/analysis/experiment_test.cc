#include "analysis/experiment.h"

#include <gtest/gtest.h>

#include <cmath>

#include "analysis/state_copy.h"
#include "kernels/head/decide.h"
#include "rollout/small_model.h"
#include "train/step/random_samples.h"
#include "train/step/token_scores.h"

namespace augur {
namespace {

class ExperimentTest : public testing::Test {
 protected:
  ExperimentTest() : optimizer_(model_, {}) {
    for (uint64_t i = 0; i < 6; ++i)
      rollouts_.push_back(RandomRollout(model_.config.vocab_size, 3, 4 + static_cast<int>(i), i));
    for (size_t i = 0; i < rollouts_.size(); ++i)
      samples_.push_back({.rollout = &rollouts_[i], .advantage = i % 2 == 0 ? 1.5 : -0.5});
    loss_.terms.rule = PresetRule("predictive-kl-aggregated");
    loss_.terms.rule.ratio_cap = 3;
  }

  TokenScores ScoreWith(Proximity proximity, Direction direction, TailModel tail) const {
    MaskRule rule = loss_.terms.rule;
    rule.proximity = proximity;
    rule.direction = direction;
    rule.tail = tail;
    return ScoreTokens(model_, samples_, {&rule, 1}, loss_).front();
  }

  // The divergences after one update in which only some tokens take part.
  std::vector<float> After(Proximity proximity, const std::vector<bool>& keep) {
    const StateCopy start(model_, optimizer_);
    std::vector<TrainSample> samples = samples_;
    size_t i = 0;
    for (TrainSample& sample : samples) {
      for (int64_t t = 0; t < sample.tokens(); ++t) sample.importance.push_back(keep[i++] ? 1.0f : 0.0f);
    }
    StepLoss unmasked = loss_;
    unmasked.terms.rule = PresetRule("none");
    unmasked.terms.rule.ratio_cap = 3;
    AccumulateMinibatch(model_, optimizer_, samples, unmasked);
    optimizer_.Update(1e-3);
    const std::vector<float> after =
        ScoreWith(proximity, Direction::kRatio, TailModel::kAggregated).divergence;
    start.Restore();
    return after;
  }

  const Model model_ = SmallModel(SmallFamilies()[3]);
  Optimizer optimizer_;
  std::vector<Rollout> rollouts_;
  std::vector<TrainSample> samples_;
  StepLoss loss_;
};

TEST_F(ExperimentTest, EachCriterionsUpdateIsThatOfTheTokensItKeeps) {
  const std::vector<Proximity> divergences = {Proximity::kKl, Proximity::kTv};
  const struct {
    const char* name;
    Direction direction;
    TailModel tail;
  } criteria[] = {{"ratio", Direction::kRatio, TailModel::kAggregated},
                  {"predicted-aggregated", Direction::kPredicted, TailModel::kAggregated},
                  {"predicted-uniform", Direction::kPredicted, TailModel::kUniform},
                  {"predicted-exact", Direction::kPredicted, TailModel::kExact}};
  const std::vector<SeedOutcome> outcomes =
      RunExperiment({model_, optimizer_, loss_, {}, 1e-3, divergences}, {samples_, {}, 5}, 2);
  ASSERT_EQ(outcomes.size(), 2u);
  const std::vector<float> weights = SampleWeights(loss_.aggregation, samples_, loss_.horizon);
  for (size_t d = 0; d < 2; ++d) {
    const SeedOutcome& outcome = outcomes[d];
    EXPECT_EQ(outcome.seed, 5);
    EXPECT_EQ(outcome.tokens, 39);
    ASSERT_EQ(outcome.criteria.size(), 4u);
    const TokenScores ratio = ScoreWith(divergences[d], Direction::kRatio, TailModel::kAggregated);
    const std::vector<float> unmasked = After(divergences[d], std::vector<bool>(39, true));
    std::vector<size_t> outside;
    size_t token = 0;
    for (size_t s = 0; s < samples_.size(); ++s) {
      for (int64_t t = 0; t < samples_[s].tokens(); ++t, ++token) {
        if (!(ratio.flags[token] & kOutside)) continue;
        ASSERT_LT(outside.size(), outcome.outside.size());
        const OutsideToken& found = outcome.outside[outside.size()];
        EXPECT_EQ(found.sequence, static_cast<int64_t>(s));
        EXPECT_EQ(found.position, t);
        EXPECT_EQ(found.id, rollouts_[s].tokens[static_cast<size_t>(t)]);
        EXPECT_EQ(found.advantage, samples_[s].advantage);
        EXPECT_EQ(found.ratio, ratio.ratio[token]);
        EXPECT_EQ(found.divergence, ratio.divergence[token]);
        EXPECT_NEAR(outcome.unmasked_change[outside.size()],
                    double{unmasked[token]} - ratio.divergence[token], 1e-6);
        outside.push_back(token);
      }
    }
    ASSERT_EQ(outside.size(), outcome.outside.size());
    for (size_t c = 0; c < 4; ++c) {
      const CriterionOutcome& found = outcome.criteria[c];
      EXPECT_EQ(found.name, criteria[c].name);
      const TokenScores scores = ScoreWith(divergences[d], criteria[c].direction, criteria[c].tail);
      std::vector<bool> keep;
      double kept = 0, all = 0;
      token = 0;
      for (const TrainSample& sample : samples_) {
        for (int64_t t = 0; t < sample.tokens(); ++t, ++token) {
          keep.push_back((scores.flags[token] & kKept) != 0);
          const double surrogate = weights[token] * scores.ratio[token] * std::abs(sample.advantage);
          all += surrogate;
          kept += keep.back() ? surrogate : 0;
        }
      }
      EXPECT_NEAR(found.surrogate_kept, kept / all, 1e-6) << found.name;
      EXPECT_LT(kept, all);
      const std::vector<float> after = After(divergences[d], keep);
      for (size_t i = 0; i < outside.size(); ++i) {
        EXPECT_EQ(found.keep[i], keep[outside[i]]);
        EXPECT_EQ(found.direction[i], scores.direction[outside[i]]);
        EXPECT_NEAR(found.change[i], double{after[outside[i]]} - ratio.divergence[outside[i]], 1e-6)
            << found.name;
      }
    }
    ASSERT_EQ(outcome.parts.size(), 2u);
    EXPECT_NE(outcome.parts[0].token, outcome.parts[1].token);
    for (const ChangeParts& part : outcome.parts) {
      EXPECT_LT(part.token, outside.size());
      EXPECT_EQ(part.momentum, 0);  // the first update has none
      EXPECT_NE(part.own, 0);
    }
  }
}

}  // namespace
}  // namespace augur
