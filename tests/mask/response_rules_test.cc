#include "mask/response_rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace augur {
namespace {

constexpr double kNothing = std::numeric_limits<double>::infinity();

std::vector<std::string_view> ResponsePresets() {
  std::vector<std::string_view> names;
  for (const std::string_view name : PresetNames()) {
    if (PresetRule(name).scope != Scope::kToken) names.push_back(name);
  }
  return names;
}

// The formulas themselves are held to float64 in tests/python/test_rules.py.
TEST(ResponseRules, ATokenWithoutSupportBelongsToNoStatistic) {
  const std::vector<double> behaviour{-1, -2, -1.5}, policy{-1.2, -1.5, -1.4}, advantage{1, 1, 1};
  const std::vector<double> with_gap{-1, -kNothing, -2, -1.5}, policy_with_gap{-1.2, 0, -1.5, -1.4};
  const std::vector<double> ones(4, 1);
  const std::vector<int64_t> lengths{3}, longer{4};
  for (const std::string_view name : ResponsePresets()) {
    const MaskRule rule = PresetRule(name);
    const auto plain = DecideResponses(rule, {behaviour, policy, advantage, lengths});
    const auto gap = DecideResponses(rule, {with_gap, policy_with_gap, ones, longer});
    EXPECT_TRUE(gap[1].missing) << name;
    EXPECT_FALSE(gap[1].keep) << name;
    EXPECT_EQ(gap[1].coefficient, 0) << name;
    for (const auto& [i, j] : {std::pair(0, 0), std::pair(1, 2), std::pair(2, 3)}) {
      EXPECT_EQ(plain[i].keep, gap[j].keep) << name;
      EXPECT_EQ(plain[i].coefficient, gap[j].coefficient) << name;
      EXPECT_EQ(plain[i].divergence, gap[j].divergence) << name;
    }
  }
}

TEST(ResponseRules, StayFiniteWhereARatioIsBeyondAllBounds) {
  const std::vector<double> behaviour{-700, -1e-9, -1}, policy{-1e-9, -700, -kNothing}, advantage{1, -1, 1};
  const std::vector<int64_t> lengths{1, 0, 2};
  for (const std::string_view name : ResponsePresets()) {
    const auto decisions = DecideResponses(PresetRule(name), {behaviour, policy, advantage, lengths});
    for (const TokenDecision& token : decisions) {
      EXPECT_TRUE(std::isfinite(token.coefficient)) << name;
      EXPECT_TRUE(std::isfinite(token.divergence)) << name;
    }
  }
}

TEST(ResponseRules, AnEmptyBatchHasNoDecisions) {
  for (const std::string_view name : ResponsePresets()) {
    EXPECT_TRUE(DecideResponses(PresetRule(name), {}).empty()) << name;
  }
}

TEST(ResponseRules, M2poMasksTheLargestOutwardTokensAlone) {
  const std::vector<double> behaviour{-1, -1, -1, -1, -1}, policy{-0.5, -0.9, -1.4, -1.05, -0.2};
  const std::vector<double> advantage{1, 1, 1, 1, -1};  // the last goes inward
  const std::vector<int64_t> lengths{5};
  std::vector<bool> keep;
  for (const TokenDecision& token :
       DecideResponses(PresetRule("m2po"), {behaviour, policy, advantage, lengths})) {
    keep.push_back(token.keep);
  }
  EXPECT_EQ(keep, (std::vector<bool>{false, false, true, true, true}));
}

}  // namespace
}  // namespace augur
