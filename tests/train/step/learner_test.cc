#include "train/step/learner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/head/decide.h"
#include "rollout/small_model.h"
#include "train/step/random_samples.h"
#include "train/step/token_scores.h"

namespace augur {
namespace {

class LearnerTest : public testing::Test {
 protected:
  LearnerTest() {
    config_.model.precision = Precision::kFp32;
    config_.parallel.shard = Shard::kNone;
    config_.rollout.group = 2;
    config_.rollout.prompts = 4;
    config_.train.optimizer.lr = 1e-3;
    for (size_t i = 0; i < 8; ++i) {
      const int length = 3 + static_cast<int>(i % 3);
      experience_.rollouts.push_back(RandomRollout(model_.config.vocab_size, 4, length, i));
      experience_.scores.push_back({.value = static_cast<double>(i % 2), .right = i % 2 == 1});
      experience_.rewards.push_back(static_cast<double>(i % 2));
    }
    experience_.prompts = {0, 1, 2, 3};
  }

  Metrics Learn(Learner& learner, const LearnHooks& hooks = {}, int64_t step = 1) {
    StepMetrics metrics;
    learner.Learn(step, experience_, hooks, &metrics);
    return metrics.Values();
  }
  Metrics Learn(const LearnHooks& hooks = {}) {
    Learner learner(config_, model_, nullptr, model_.config.vocab_size);
    return Learn(learner, hooks);
  }
  // Places among the rollouts.
  std::vector<size_t> PlacesOf(std::span<const TrainSample> samples) const {
    std::vector<size_t> places;
    for (const TrainSample& sample : samples)
      places.push_back(static_cast<size_t>(sample.rollout - experience_.rollouts.data()));
    std::ranges::sort(places);
    return places;
  }
  // log π - log μ of the sampled tokens of some responses, in their order.
  std::vector<double> LogRatios(const std::vector<size_t>& places) const {
    std::vector<TrainSample> samples;
    for (const size_t place : places)
      samples.push_back({.rollout = &experience_.rollouts[place], .advantage = 1});
    const MaskRule none = PresetRule("none");
    std::vector<double> found;
    const TokenScores scores = ScoreTokens(model_, samples, {&none, 1}, {}).front();
    for (const float ratio : scores.ratio) found.push_back(std::log(double{ratio}));
    return found;
  }

  const Model model_ = SmallModel(SmallFamilies()[3]);
  RlConfig config_;
  Experience experience_;
};

using Places = std::vector<size_t>;

TEST_F(LearnerTest, LearnsFromResponsesThatEndedAndFromGroupsWhoseScoresDiffer) {
  experience_.rollouts[0].finish = FinishReason::kLength;
  experience_.rollouts[3].finish = FinishReason::kFailed;
  experience_.scores[4].value = experience_.scores[5].value = 1;  // their rewards differ by shaping alone
  Places learned;
  LearnHooks hooks;
  hooks.before_update = [&](std::span<const TrainSample> samples, const StepSums&) {
    learned = PlacesOf(samples);
  };
  Learn(hooks);
  EXPECT_EQ(learned, (Places{0, 1, 2, 4, 5, 6, 7}));
  config_.algorithm.drop_truncated = true;
  Learn(hooks);
  EXPECT_EQ(learned, (Places{1, 2, 4, 5, 6, 7}));
  config_.algorithm.skip_equal_groups = true;
  const Metrics metrics = Learn(hooks);
  EXPECT_EQ(learned, (Places{1, 2, 6, 7}));
  EXPECT_NEAR(metrics.at("critic/advantages/max"), 0.5 / (std::sqrt(0.5) + 1e-6), 1e-9);
  EXPECT_NEAR(metrics.at("critic/advantages/mean"), 0, 1e-9);
}

TEST_F(LearnerTest, GoesThroughItsMinibatchesInEveryEpoch) {
  config_.train.minibatch = 2;
  config_.train.epochs = 2;
  config_.train.steps = 10;
  config_.train.optimizer.warmup_steps = 4;
  std::vector<Places> updates;
  Places last;
  int announced = 0;
  std::vector<int64_t> progress;
  int64_t all = 0, length = 0;
  for (const Rollout& rollout : experience_.rollouts)
    length += static_cast<int64_t>(rollout.prompt_tokens.size() + rollout.tokens.size()) - 1;
  LearnHooks hooks;
  hooks.before_update = [&](std::span<const TrainSample> samples, const StepSums&) {
    updates.push_back(PlacesOf(samples));
  };
  hooks.last_minibatch = [&](const MicroBatch& batch, const PolicyLoss&) {
    const Places here = PlacesOf(batch.samples);
    last.insert(last.end(), here.begin(), here.end());
    EXPECT_EQ(updates.size(), 3u);
  };
  hooks.several_updates = [&] {
    ++announced;
    EXPECT_TRUE(updates.empty());
  };
  hooks.progress = [&](int64_t done, int64_t total) {
    progress.push_back(done);
    all = total;
  };
  Learner learner(config_, model_, nullptr, model_.config.vocab_size);
  const Metrics metrics = Learn(learner, hooks, 2);
  const Places first = {0, 1, 2, 3}, second = {4, 5, 6, 7};
  EXPECT_EQ(updates, (std::vector<Places>{first, second, first, second}));
  EXPECT_EQ(last, second);
  EXPECT_EQ(announced, 1);
  EXPECT_EQ(metrics.at("actor/updates"), 4);
  EXPECT_EQ(metrics.at("actor/skipped_updates"), 0);
  EXPECT_EQ(learner.optimizer().updates(), 4);
  EXPECT_NEAR(metrics.at("actor/lr"), 0.5e-3, 1e-12);  // the second of four steps of warm-up
  EXPECT_EQ(all, 2 * length);
  EXPECT_EQ(progress.front(), 0);
  EXPECT_EQ(progress.back(), all);
}

TEST_F(LearnerTest, ACorruptGradientIsSkippedCountedAndLeavesTheOthers) {
  config_.train.minibatch = 2;
  LearnHooks hooks;
  hooks.corrupt_gradient = true;
  Learner learner(config_, model_, nullptr, model_.config.vocab_size);
  const Metrics metrics = Learn(learner, hooks);
  EXPECT_EQ(metrics.at("actor/updates"), 1);
  EXPECT_EQ(metrics.at("actor/skipped_updates"), 1);
  EXPECT_EQ(learner.bad_updates().in_row(), 0);
  config_.train.minibatch = 0;
  config_.train.optimizer.max_bad_updates = 2;
  Learner strict(config_, model_, nullptr, model_.config.vocab_size);
  Learn(strict, hooks);
  EXPECT_EQ(strict.bad_updates().in_row(), 1);
  EXPECT_THROW(Learn(strict, hooks), NotFiniteError);
}

TEST_F(LearnerTest, TheMismatchIsThatOfTheFirstMinibatchBeforeAnyUpdate) {
  config_.train.minibatch = 2;
  double difference = 0, largest = 0, kl = 0;
  const std::vector<double> ratios = LogRatios({0, 1, 2, 3});
  for (const double x : ratios) {
    difference += std::abs(x);
    largest = std::max(largest, std::abs(x));
    kl += std::expm1(x) - x;
  }
  const auto tokens = static_cast<double>(ratios.size());
  const Metrics metrics = Learn();
  EXPECT_NEAR(metrics.at("mismatch/logp_diff_mean"), difference / tokens, 1e-4);
  EXPECT_NEAR(metrics.at("mismatch/logp_diff_max"), largest, 1e-4);
  EXPECT_NEAR(metrics.at("mismatch/kl"), kl / tokens, 1e-4 * kl);
}

TEST_F(LearnerTest, TisWeighsTokensByTheTruncatedRatioOfTheRecomputedAnchor) {
  config_.algorithm.loss = LossKind::kTis;
  config_.algorithm.anchor = Anchor::kRecomputed;
  config_.algorithm.tis_cap = 0.1;
  const std::vector<double> ratios = LogRatios({0, 1, 2, 3, 4, 5, 6, 7});
  int cut = 0;
  LearnHooks hooks;
  hooks.before_update = [&](std::span<const TrainSample> samples, const StepSums&) {
    for (const TrainSample& sample : samples) {
      const auto place = static_cast<size_t>(sample.rollout - experience_.rollouts.data());
      size_t t = 0;
      for (size_t i = 0; i < place; ++i) t += experience_.rollouts[i].tokens.size();
      ASSERT_EQ(sample.importance.size(), sample.rollout->tokens.size());
      for (size_t i = 0; i < sample.importance.size(); ++i, ++t) {
        EXPECT_NEAR(sample.importance[i], std::min(std::exp(ratios[t]), 0.1), 1e-4);
        EXPECT_NEAR(sample.anchor[6 * i], sample.rollout->logprobs[i] + ratios[t], 1e-4);
        cut += std::exp(ratios[t]) > 0.1;
      }
    }
  };
  Learn(hooks);
  EXPECT_GT(cut, 0);
}

TEST_F(LearnerTest, TheReferenceScoresTheTokensOnceBeforeTheUpdates) {
  config_.algorithm.kl_coef = 0.1;
  config_.train.epochs = 2;
  const std::vector<double> ratios = LogRatios({0, 1, 2, 3, 4, 5, 6, 7});
  int updates = 0;
  LearnHooks hooks;
  hooks.before_update = [&](std::span<const TrainSample> samples, const StepSums& sums) {
    for (const TrainSample& sample : samples) {
      const auto place = static_cast<size_t>(sample.rollout - experience_.rollouts.data());
      size_t t = 0;
      for (size_t i = 0; i < place; ++i) t += experience_.rollouts[i].tokens.size();
      ASSERT_EQ(sample.reference.size(), sample.rollout->tokens.size());
      for (size_t i = 0; i < sample.reference.size(); ++i, ++t)
        EXPECT_NEAR(sample.reference[i], sample.rollout->logprobs[i] + ratios[t], 1e-4);
    }
    if (updates++ == 0) {
      EXPECT_NEAR(sums.reference_kl, 0, 1e-4);
    } else {
      EXPECT_GT(sums.reference_kl, 1e-4);
    }
  };
  const Reference reference = MakeReference(SmallModel(SmallFamilies()[3]), Shard::kNone);
  Learner learner(config_, model_, &reference, model_.config.vocab_size);
  Learn(learner, hooks);
  EXPECT_EQ(updates, 2);
}

TEST_F(LearnerTest, ABudgetPutsThatShareOfEveryMinibatchOutside) {
  config_.mask.rule.outside_budget = 0.25;
  config_.train.minibatch = 2;
  Learner learner(config_, model_, nullptr, model_.config.vocab_size);
  LearnHooks hooks;
  hooks.before_update = [&](std::span<const TrainSample>, const StepSums& sums) {
    EXPECT_NEAR(sums.Mean(kSumOutside), 0.25, 1 / sums.sums[kSumTokens]);
  };
  const Metrics metrics = Learn(learner, hooks);
  EXPECT_GT(metrics.at("mask/delta"), 0);
  EXPECT_NE(learner.loss().terms.rule.delta, config_.mask.rule.delta);
}

}  // namespace
}  // namespace augur
