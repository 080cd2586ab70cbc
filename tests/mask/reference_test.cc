#include "mask/reference.h"

#include <gtest/gtest.h>

#include <limits>

#include "mask/golden.h"
#include "mask/outside_budget.h"
#include "mask/random_token.h"
#include "mask/rule.h"

namespace augur {
namespace {

constexpr TailModel kTailModels[] = {TailModel::kAggregated, TailModel::kUniform, TailModel::kExact};
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Reference, ReproducesTheGoldenCases) {
  const auto cases = GoldenCases();
  ASSERT_GE(cases.size(), 100u);
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto behaviour = cases[i]["behaviour"].get<std::vector<double>>();
    const auto policy = cases[i]["policy"].get<std::vector<double>>();
    const TokenView token{
        behaviour, policy, cases[i]["advantage"], cases[i]["vocab"], cases[i]["tail_square"], {}};
    for (const auto& [name, expected] : cases[i]["expect"].items()) {
      const TokenDecision decision = DecideReference(PresetRule(name), token);
      EXPECT_NEAR(decision.ratio, expected["ratio"], 1e-12 * decision.ratio) << i << ' ' << name;
      EXPECT_NEAR(decision.divergence, expected["divergence"], 1e-10) << i << ' ' << name;
      EXPECT_NEAR(decision.direction, expected["direction"], 1e-10 * (1 + decision.ratio))
          << i << ' ' << name;
      if (!expected["keep"].is_null()) {
        EXPECT_EQ(decision.keep, expected["keep"].get<bool>()) << i << ' ' << name;
      }
    }
  }
}

// The divergence over the support after moving the whole vocabulary's logits along the gradient of log
// pi(sampled).
double DivergenceAfterStep(const FullToken& token, Proximity proximity, double step) {
  FullToken moved = token;
  const auto log_pi = LogSoftmax(token.policy_logits);
  for (size_t i = 0; i < log_pi.size(); ++i) {
    const bool is_sampled = static_cast<int>(i) == token.support[0];
    moved.policy_logits[i] += step * (is_sampled - std::exp(log_pi[i]));
  }
  moved.Gather();
  return ReferenceDivergence(proximity, Support::kTopK, moved.View());
}

TEST(Reference, TheExactTailIsTheDerivativeOnTheFullSoftmax) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const FullToken token = RandomToken(random, 50 + trial, 20, 1.5, 0.5);
    for (const Proximity proximity : kDivergences) {
      const double step = 1e-5;
      const double measured =
          (DivergenceAfterStep(token, proximity, step) - DivergenceAfterStep(token, proximity, -step)) /
          (2 * step);
      const double predicted = ReferenceChange(proximity, Support::kTopK, TailModel::kExact, token.View());
      EXPECT_NEAR(predicted, measured, 1e-6 * std::abs(measured) + 1e-10);
    }
  }
}

TEST(Reference, TheGradientIsTheDerivativeInEveryLogit) {
  std::mt19937_64 random(8);
  for (int trial = 0; trial < 40; ++trial) {
    const FullToken token = RandomToken(random, 30, 10, 1.5, 0.5);
    const auto log_pi = LogSoftmax(token.policy_logits);
    for (const Proximity proximity : kDivergences) {
      for (const Support support : {Support::kTopK, Support::kBinary}) {
        const LogitGradient gradient = ReferenceGradient(proximity, support, token.View());
        for (size_t j = 0; j < log_pi.size(); ++j) {
          double expected = gradient.everywhere * std::exp(log_pi[j]);
          for (size_t c = 0; c < token.support.size(); ++c) {
            if (token.support[c] == static_cast<int>(j)) expected += gradient.at_atom[c];
          }
          const auto moved = [&](double step) {
            FullToken other = token;
            other.policy_logits[j] += step;
            other.Gather();
            return ReferenceDivergence(proximity, support, other.View());
          };
          const double measured = (moved(1e-5) - moved(-1e-5)) / 2e-5;
          EXPECT_NEAR(expected, measured, 1e-6 * std::abs(measured) + 1e-9) << NameOf(proximity) << ' ' << j;
        }
      }
    }
  }
}

// The support a tail model stands for, as a token of its own whose whole vocabulary is that support: the tail
// as one atom, or as equal atoms. On it nothing is left to model.
FullToken Reduced(const FullToken& token, TailModel tail) {
  const TokenView view = token.View();
  const int unseen = static_cast<int>(token.policy_logits.size() - token.support.size());
  const int atoms = tail == TailModel::kAggregated ? std::min(unseen, 1) : unseen;
  FullToken reduced;
  double mu_tail = 1, pi_tail = 1;
  for (size_t i = 0; i < view.behaviour.size(); ++i) {
    reduced.behaviour_logits.push_back(view.behaviour[i]);
    reduced.policy_logits.push_back(view.policy[i]);
    reduced.support.push_back(static_cast<int>(i));
    mu_tail -= std::exp(view.behaviour[i]);
    pi_tail -= std::exp(view.policy[i]);
  }
  for (int i = 0; i < atoms; ++i) {
    reduced.behaviour_logits.push_back(std::log(mu_tail / atoms));
    reduced.policy_logits.push_back(std::log(pi_tail / atoms));
    reduced.support.push_back(static_cast<int>(view.behaviour.size()) + i);
  }
  reduced.Gather();
  return reduced;
}

TEST(Reference, TheOtherTailsAreDerivativesOnTheSupportTheyModel) {
  std::mt19937_64 random(2);
  for (int trial = 0; trial < 200; ++trial) {
    const FullToken token = RandomToken(random, 30 + trial, 20, 1.0, 0.5);
    for (const TailModel tail : {TailModel::kAggregated, TailModel::kUniform}) {
      const FullToken reduced = Reduced(token, tail);
      for (const Proximity proximity : kDivergences) {
        const double step = 3e-5;
        const double measured =
            (DivergenceAfterStep(reduced, proximity, step) - DivergenceAfterStep(reduced, proximity, -step)) /
            (2 * step);
        const double predicted = ReferenceChange(proximity, Support::kTopK, tail, token.View());
        EXPECT_NEAR(predicted, measured, 1e-6 * std::abs(measured) + 1e-9);
      }
    }
  }
}

// The second derivative along the gradient of log pi(sampled), which stays what it is at the start.
double MeasuredCurvature(const FullToken& token) {
  constexpr double kStep = 1e-3;
  const auto at = [&](double step) { return DivergenceAfterStep(token, Proximity::kKl, step); };
  return (at(kStep) - 2 * at(0) + at(-kStep)) / (kStep * kStep);
}

TEST(Reference, TheCurvatureIsTheSecondDerivativeOnTheFullSoftmax) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    const FullToken token = RandomToken(random, 50 + trial, 20, 1.5, 0.5);
    const double measured = MeasuredCurvature(token);
    const double computed = ReferenceCurvature(Support::kTopK, TailModel::kExact, token.View());
    EXPECT_NEAR(computed, measured, 1e-6 * std::abs(measured) + 1e-7) << trial;
  }
}

TEST(Reference, TheOtherTailsHaveTheCurvatureOfTheSupportTheyModel) {
  std::mt19937_64 random(4);
  for (int trial = 0; trial < 200; ++trial) {
    const FullToken token = RandomToken(random, 30 + trial, 20, 1.0, 0.5);
    for (const TailModel tail : {TailModel::kAggregated, TailModel::kUniform}) {
      const double measured = MeasuredCurvature(Reduced(token, tail));
      const double computed = ReferenceCurvature(Support::kTopK, tail, token.View());
      EXPECT_NEAR(computed, measured, 1e-6 * std::abs(measured) + 1e-7) << trial;
    }
  }
}

TEST(Reference, TheSecondOrderForeseesTheDivergenceAfterAStep) {
  std::mt19937_64 random(5);
  MaskRule rule = PresetRule("predictive-kl-second-order");
  rule.eta = 0.02;
  for (int trial = 0; trial < 300; ++trial) {
    FullToken token = RandomToken(random, 100, 20, 1.5, 0.5);
    const TokenDecision decision = DecideReference(rule, token.View());
    const double step = rule.eta * token.advantage * decision.ratio;
    if (std::abs(step) > 0.2) continue;
    const double after = DivergenceAfterStep(token, Proximity::kKl, step);
    EXPECT_NEAR(decision.divergence + step * decision.direction, after, std::abs(step * step * step));
  }
}

TEST(Reference, TheLocalTermHasTheSignOfTheRatio) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 1000; ++trial) {
    const FullToken token = RandomToken(random, 100, 20, 2, 0.5);
    const TokenView view = token.View();
    const double local = std::exp(view.policy[0]) - std::exp(view.behaviour[0]);
    const double ratio_side = DecideReference(PresetRule("none"), view).direction;
    EXPECT_EQ(local > 0, ratio_side > 0);
  }
}

TEST(Reference, BinaryKlWithAggregatedTailIsDppoBinaryKl) {
  std::mt19937_64 random(4);
  const MaskRule dppo = PresetRule("dppo-binary-kl");
  MaskRule predictive = dppo;
  predictive.direction = Direction::kPredicted;
  int masked = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const FullToken token = RandomToken(random, 100, 20, 2, 1);
    const TokenDecision decision = DecideReference(dppo, token.View());
    EXPECT_EQ(decision.keep, DecideReference(predictive, token.View()).keep);
    EXPECT_FALSE(decision.disagree);
    masked += !decision.keep;
  }
  EXPECT_GT(masked, 40);
}

TEST(Reference, TheGapBetweenTheEstimatorsIsThePapers) {
  std::mt19937_64 random(5);
  for (int trial = 0; trial < 500; ++trial) {
    const FullToken token = RandomToken(random, 200, 20, 1, 0.7);
    const TokenView view = token.View();
    double mu_tail = 1, pi_tail = 1;
    for (size_t i = 0; i < view.behaviour.size(); ++i) {
      mu_tail -= std::exp(view.behaviour[i]);
      pi_tail -= std::exp(view.policy[i]);
    }
    const double unseen = 200.0 - static_cast<double>(view.behaviour.size());
    const double gap = ReferenceChange(Proximity::kKl, Support::kTopK, TailModel::kAggregated, view) -
                       ReferenceChange(Proximity::kKl, Support::kTopK, TailModel::kUniform, view);
    EXPECT_NEAR(gap, (1 - 1 / unseen) * pi_tail * (mu_tail - pi_tail), 1e-14);
  }
}

TEST(Reference, TheCriteriaDisagreeExactlyWhenTheMeanGapOvertakesTheSampledOne) {
  std::mt19937_64 random(6);
  const MaskRule rule = PresetRule("predictive-kl-exact");
  int disagreements = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    FullToken token = RandomToken(random, 12, 12, 1.5, 1);  // the support is the vocabulary: no tail to model
    token.advantage = trial % 2 ? 1 : -1;
    const TokenView view = token.View();
    const double sampled_gap = std::exp(view.policy[0]) - std::exp(view.behaviour[0]);
    double mean_gap = 0;
    for (size_t i = 0; i < view.policy.size(); ++i) {
      mean_gap += std::exp(view.policy[i]) * (std::exp(view.policy[i]) - std::exp(view.behaviour[i]));
    }
    const bool overtaken =
        (0 < sampled_gap && sampled_gap < mean_gap) || (0 > sampled_gap && sampled_gap > mean_gap);
    const TokenDecision decision = DecideReference(rule, view);
    EXPECT_EQ(decision.disagree, decision.outside && overtaken);
    disagreements += decision.disagree;
  }
  EXPECT_GT(disagreements, 100);
}

TEST(Reference, TheRatioMaskIsWhereTheClippedSurrogateIsFlat) {
  std::mt19937_64 random(7);
  const MaskRule rule = PresetRule("clip");
  const auto surrogate = [&](double ratio, double advantage) {
    return std::min(ratio * advantage, std::clamp(ratio, 1 - rule.clip_low, 1 + rule.clip_high) * advantage);
  };
  for (int trial = 0; trial < 2000; ++trial) {
    FullToken token = RandomToken(random, 50, 20, 1, 0.5);
    if (token.advantage == 0) token.advantage = 1;
    const TokenDecision decision = DecideReference(rule, token.View());
    const double step = 1e-7;
    const double slope = (surrogate(decision.ratio + step, token.advantage) -
                          surrogate(decision.ratio - step, token.advantage)) /
                         (2 * step);
    EXPECT_NEAR(slope, decision.keep ? token.advantage : 0.0, 1e-6);
  }
}

TEST(Reference, ZeroAdvantageAndUnitRatioKeep) {
  const std::vector<double> behaviour{-0.5, -2, -3}, far{-3, -0.2, -4};
  for (const std::string_view name : PresetNames()) {
    EXPECT_TRUE(DecideReference(PresetRule(name), {behaviour, far, 0, 100, 0.001, {}}).keep) << name;
    const TokenDecision same = DecideReference(PresetRule(name), {behaviour, behaviour, 1, 100, 0.001, {}});
    EXPECT_TRUE(same.keep) << name;
    EXPECT_EQ(same.ratio, 1) << name;
    EXPECT_EQ(same.divergence, 0) << name;
  }
}

TEST(Reference, ThresholdsMayDifferByTheSignOfTheAdvantage) {
  MaskRule rule = PresetRule("dppo-topk-kl");
  rule.delta = 0.01;
  rule.delta_negative = 10;
  const std::vector<double> behaviour{-1, -1}, up{-0.5, -1.5}, down{-1.5, -0.5};
  EXPECT_FALSE(DecideReference(rule, {behaviour, up, 1, 10, 0, {}}).keep);
  EXPECT_TRUE(DecideReference(rule, {behaviour, down, -1, 10, 0, {}}).keep);
  rule.delta_negative = 0;
  EXPECT_FALSE(DecideReference(rule, {behaviour, down, -1, 10, 0, {}}).keep);
}

TEST(Reference, UnusedColumnsAreIgnoredWhateverTheyHold) {
  const std::vector<double> behaviour{-1, -1.5}, policy{-1.2, -1.1};
  const std::vector<double> padded_behaviour{-1, -1.5, -kInf, -kInf}, padded_policy{-1.2, -1.1, kNan, kInf};
  for (const std::string_view name : PresetNames()) {
    const auto plain = DecideReference(PresetRule(name), {behaviour, policy, 1, 10, 0.01, {}});
    const auto padded = DecideReference(PresetRule(name), {padded_behaviour, padded_policy, 1, 10, 0.01, {}});
    EXPECT_EQ(plain.divergence, padded.divergence) << name;
    EXPECT_EQ(plain.direction, padded.direction) << name;
  }
}

TEST(Reference, AnAtomThatThePolicyHasLeftCountsNothingInTheReverseKl) {
  const std::vector<double> behaviour{std::log(0.5), std::log(0.3)}, left{-kInf, std::log(0.6)};
  const TokenView token{behaviour, left, 1, 10, 0.01, {}};
  const double expected = 0.6 * std::log(2.0) + 0.4 * std::log(2.0);
  EXPECT_NEAR(ReferenceDivergence(Proximity::kReverseKl, Support::kTopK, token), expected, 1e-12);
  EXPECT_TRUE(
      std::isfinite(ReferenceChange(Proximity::kReverseKl, Support::kTopK, TailModel::kExact, token)));
}

TEST(Reference, TheDualClipIsWhereVerlsLowerBoundIsFlat) {
  std::mt19937_64 random(9);
  const MaskRule rule = PresetRule("clip-dual");
  const auto loss = [&](double ratio, double advantage) {
    const double clipped =
        std::max(-ratio * advantage, -std::clamp(ratio, 1 - rule.clip_low, 1 + rule.clip_high) * advantage);
    return advantage < 0 ? std::min(clipped, -advantage * 3) : clipped;
  };
  int dual = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    FullToken token = RandomToken(random, 50, 20, 1, 1.5);
    if (token.advantage == 0) token.advantage = -1;
    const TokenDecision decision = DecideReference(rule, token.View());
    const double step = 1e-6 * decision.ratio;
    const double slope =
        (loss(decision.ratio + step, token.advantage) - loss(decision.ratio - step, token.advantage)) /
        (2 * step);
    EXPECT_NEAR(slope, decision.keep ? -token.advantage : 0.0, 1e-6);
    dual += !decision.keep && decision.ratio > 3 && token.advantage < 0;
  }
  EXPECT_GT(dual, 20);
}

TEST(OutsideBudget, LeavesThatShareOutside) {
  std::vector<double> divergences;
  for (int i = 0; i < 100; ++i) divergences.push_back((i * 37 % 100) / 100.0);
  for (const double budget : {0.01, 0.07, 0.29, 0.5, 0.994}) {
    const double delta = DeltaForBudget(divergences, budget);
    const auto outside = std::ranges::count_if(divergences, [&](double d) { return d > delta; });
    EXPECT_EQ(outside, static_cast<int>(budget * 100 + 1e-9)) << budget;
  }
  EXPECT_EQ(DeltaForBudget(divergences, 0.001), 0.99);  // less than one token
  EXPECT_EQ(DeltaForBudget({0.5, 0.5, 0.5, 0.5}, 0.5), 0.5);
  EXPECT_EQ(DeltaForBudget({0.1, kNan, 0.3, 0.2}, 0.25), 0.25);
  EXPECT_EQ(DeltaForBudget({}, 0.5), 1e-6);
}

TEST(OutsideBudget, LeavesNothingOutsideThatDiffersByRounding) {
  EXPECT_EQ(DeltaForBudget({1e-8, 3e-8, 0, 2e-8}, 0.5), 1e-6);
  EXPECT_EQ(DeltaForBudget({1e-8}, 0.5), 1e-6);
}

TEST(Reference, ATokenWithoutSupportIsNotKeptAndSaysSo) {
  const std::vector<double> none{-kInf, -kInf}, policy{kNan, 0};
  const TokenDecision decision =
      DecideReference(PresetRule("predictive-kl-exact"), {none, policy, 1, 10, 0, {}});
  EXPECT_TRUE(decision.missing);
  EXPECT_FALSE(decision.keep);
  EXPECT_EQ(decision.ratio, 1);
}

TEST(Reference, AnEmptyOrVanishedTailStaysFinite) {
  for (const TailModel tail : kTailModels) {
    for (const Proximity proximity : kDivergences) {
      const std::vector<double> all{std::log(0.6), std::log(0.4)};
      const TokenView empty{all, all, 1, 2, 0, {}};
      EXPECT_EQ(ReferenceDivergence(proximity, Support::kTopK, empty), 0);
      EXPECT_TRUE(std::isfinite(ReferenceChange(proximity, Support::kTopK, tail, empty)));
      const std::vector<double> part{std::log(0.5), std::log(0.3)};  // mu keeps a tail that pi has lost
      const double lost = ReferenceDivergence(proximity, Support::kTopK, {part, all, 1, 9, 0, {}});
      EXPECT_TRUE(std::isfinite(lost));
      EXPECT_GT(lost, 0.05);
    }
  }
}

}  // namespace
}  // namespace augur
