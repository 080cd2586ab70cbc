#include "train/step/audit.h"

#include <gtest/gtest.h>

#include "kernels/head/decide.h"
#include "rollout/small_model.h"
#include "train/step/random_samples.h"
#include "train/step/token_scores.h"

namespace augur {
namespace {

TEST(Audit, SharesAreOfTheTokensTheyNameAndKeptOnesGrowOrFall) {
  const Model model = SmallModel(SmallFamilies()[3]);
  Optimizer optimizer(model, {});
  std::vector<Rollout> rollouts;
  for (int i = 0; i < 6; ++i)
    rollouts.push_back(RandomRollout(model.config.vocab_size, 4, 5 + i, static_cast<uint64_t>(i)));
  std::vector<TrainSample> samples;
  for (size_t i = 0; i < rollouts.size(); ++i)
    samples.push_back({.rollout = &rollouts[i], .advantage = i % 2 == 0 ? 1.0 : -1.0, .place = i});
  StepLoss loss;
  loss.terms.rule = PresetRule("predictive-kl-exact");
  Audit audit(model, loss);
  const auto score = [&] { return ScoreTokens(model, samples, {&loss.terms.rule, 1}, loss).front(); };
  const TokenScores before = score();
  AccumulateMinibatch(model, optimizer, samples, loss,
                      [&](const MicroBatch& batch, const PolicyLoss& out) { audit.See(batch, out); });
  optimizer.Update(3e-3);
  StepMetrics metrics;
  audit.Finish(&metrics);
  const TokenScores after = score();
  double outside = 0, kept = 0, grew = 0, change = 0, disagree = 0;
  for (size_t i = 0; i < before.flags.size(); ++i) {
    if (!(before.flags[i] & kOutside)) continue;
    const double difference = double{after.divergence[i]} - before.divergence[i];
    ++outside;
    change += difference;
    disagree += (before.flags[i] & kDisagrees) != 0;
    if (!(before.flags[i] & kKept)) continue;
    ++kept;
    grew += difference > 0;
  }
  ASSERT_GT(grew, 0);
  ASSERT_GT(kept, grew);
  ASSERT_GT(outside, kept);
  const Metrics found = metrics.Values();
  EXPECT_EQ(found.at("audit/outside"), outside);
  EXPECT_NEAR(found.at("audit/unsafe_keep"), grew / kept, 1e-9);
  EXPECT_NEAR(found.at("audit/unsafe_keep") + found.at("audit/contraction"), 1, 1e-9);
  EXPECT_NEAR(found.at("audit/delta_divergence"), change / outside, 1e-5);
  EXPECT_NEAR(found.at("audit/disagree"), disagree / outside, 1e-9);
}

}  // namespace
}  // namespace augur
