#include "analysis/study.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace augur {
namespace {

// Four outside tokens with advantage 1; the ratio masks the first two, the prediction the second and third.
SeedOutcome Example(int64_t seed) {
  SeedOutcome s;
  s.seed = seed;
  s.tokens = 100;
  for (int64_t i = 0; i < 4; ++i) s.outside.push_back({0, i, 5, 1.0, 1.2, 0.3});
  s.unmasked_change = {0.4, 0.2, -0.1, 0.0};
  CriterionOutcome ratio{
      "ratio", {0.1, 0.1, -0.1, -0.1}, {false, false, true, true}, {0.1, 0.1, -0.2, 0.0}, 0.5};
  CriterionOutcome predicted{
      "predicted-exact", {-0.1, 0.2, 0.3, -0.1}, {true, false, false, true}, {0.3, 0.1, -0.3, 0.0}, 0.6};
  s.criteria = {ratio, predicted};
  s.parts = {{0, 0.1, 0.1, 0.2, 0.0}, {2, 0.05, -0.2, 0.1, 0.0}};
  s.momentum_cosine = 0.9;
  return s;
}

TEST(Study, CountsSignsAgainstTheUnmaskedChangeWithZerosApart) {
  const std::vector<SeedOutcome> seeds = {Example(0), Example(1)};
  const Json study = SummarizeStudy("kl", 0.15, seeds);
  EXPECT_EQ(study["outside_total"], 8);
  const Json& ratio = study["criteria"][0]["prediction"];
  EXPECT_EQ(ratio["zeros"], 2);
  EXPECT_EQ(ratio["counted"], 6);
  EXPECT_DOUBLE_EQ(ratio["pooled"], 1.0);
  EXPECT_DOUBLE_EQ(study["criteria"][1]["prediction"]["pooled"], 1.0 / 3);
}

TEST(Study, UnsafeKeepsAreThoseOfTheCriterionsOwnUpdateOnDisagreements) {
  const std::vector<SeedOutcome> seeds = {Example(0), Example(1)};
  const Json d = SummarizeStudy("kl", 0.15, seeds)["criteria"][1]["disagreements"];
  EXPECT_EQ(d["total"], 4);  // tokens 0 and 2 of each seed
  EXPECT_DOUBLE_EQ(d["unsafe_keep"]["mean"], 1.0);
  EXPECT_DOUBLE_EQ(d["ratio_unsafe_keep"]["mean"], 0.0);
  EXPECT_DOUBLE_EQ(d["unsafe_keep_minus_ratio"]["mean"], 1.0);
  EXPECT_EQ(d["unsafe_keep_minus_ratio"]["above"], 2);
  EXPECT_DOUBLE_EQ(d["contraction"], 0.0);
  EXPECT_DOUBLE_EQ(d["ratio_contraction"], 1.0);
  EXPECT_EQ(d["ecdf"].size(), 2u);
}

// Of five disagreements the criterion keeps three, of which two grow, and the ratio two, of which one grows.
TEST(Study, SharesOfDisagreementsAreOfThoseThatTheirKeeperKeeps) {
  SeedOutcome seed;
  seed.outside.assign(6, {0, 0, 5, 1.0, 1.2, 0.3});
  seed.unmasked_change.assign(6, 0.1);
  seed.criteria = {
      {"ratio", {1, 1, 1, 1, 1, 1}, {false, false, false, true, true, true}, {9, 9, 9, 0.1, -0.1, 9}},
      {"other", {1, 1, 1, 1, 1, 1}, {true, true, true, false, false, true}, {0.1, 0.2, -0.1, 9, 9, 9}}};
  const Json study = SummarizeStudy("kl", 0.15, std::vector{seed});
  const Json& d = study["criteria"][1]["disagreements"];
  EXPECT_EQ(d["total"], 5);
  EXPECT_EQ(d["kept"], 3);
  EXPECT_EQ(d["ratio_kept"], 2);
  EXPECT_DOUBLE_EQ(d["unsafe_keep"]["mean"], 2.0 / 3);
  EXPECT_DOUBLE_EQ(d["ratio_unsafe_keep"]["mean"], 0.5);
  EXPECT_DOUBLE_EQ(d["contraction"], 1.0 / 3);
  EXPECT_DOUBLE_EQ(d["ratio_contraction"], 0.5);
  const Json& by_seed = study["criteria"][1]["per_seed"][0];
  EXPECT_EQ(by_seed["disagreements"], 5);
  EXPECT_DOUBLE_EQ(by_seed["unsafe_keep"], 2.0 / 3);
  EXPECT_DOUBLE_EQ(by_seed["ratio_unsafe_keep"], 0.5);
  EXPECT_EQ(d["ecdf"], Json({{-0.1, 1.0 / 3}, {0.1, 2.0 / 3}, {0.2, 1.0}}));
  EXPECT_EQ(d["ratio_ecdf"], Json({{-0.1, 0.5}, {0.1, 1.0}}));
  EXPECT_DOUBLE_EQ(study["criteria"][0]["masked"]["mean"], 0.5);
  EXPECT_DOUBLE_EQ(study["criteria"][1]["masked"]["mean"], 2.0 / 6);
}

TEST(Study, ControlComparesMeanChangesWithNoMaskAndWithTheRatio) {
  const std::vector<SeedOutcome> seeds = {Example(0), Example(1)};
  const Json study = SummarizeStudy("kl", 0.15, seeds);
  EXPECT_NEAR(study["unmasked_change"]["mean"], 0.125, 1e-12);
  const Json& control = study["criteria"][1]["control"];
  EXPECT_NEAR(control["change"]["mean"], 0.025, 1e-12);
  EXPECT_NEAR(control["minus_unmasked"]["mean"], -0.1, 1e-12);
  EXPECT_NEAR(control["minus_ratio"]["mean"], 0.025, 1e-12);
  EXPECT_NEAR(control["surrogate_kept"]["mean"], 0.6, 1e-12);
}

TEST(Study, OracleIsHeldAgainstTheRealChangeAndCriteriaAgainstTheOwnEffect) {
  const Json parts = SummarizeStudy("kl", 0.15, std::vector{Example(0)})["decomposition"];
  EXPECT_EQ(parts["tokens"], 2);
  EXPECT_DOUBLE_EQ(parts["oracle_sign_accuracy"], 1.0);  // 0.4 > 0 and -0.05 < 0, as realized
  EXPECT_DOUBLE_EQ(parts["own_effect_sign_accuracy"]["ratio"], 0.5);
  EXPECT_DOUBLE_EQ(parts["own_effect_sign_accuracy"]["predicted-exact"], 0.5);
  EXPECT_NEAR(parts["median_size"]["others"], 0.15, 1e-12);
}

TEST(Study, SeedsWithoutOutsideTokensAreLeftOutOfRates) {
  SeedOutcome empty;
  empty.seed = 1;
  empty.tokens = 100;
  empty.criteria = {{"ratio", {}, {}, {}, 1}, {"predicted-exact", {}, {}, {}, 1}};
  const Json study = SummarizeStudy("kl", 0.15, std::vector{Example(0), empty});
  EXPECT_DOUBLE_EQ(study["outside"]["mean"], 2);
  EXPECT_EQ(study["criteria"][1]["prediction"]["sign_accuracy"]["seeds"], 1);
  EXPECT_NEAR(study["unmasked_change"]["mean"], 0.125, 1e-12);
}

TEST(Study, CsvHasALinePerTokenAndCriterion) {
  const std::string csv = StudyCsv("kl", std::vector{Example(0)}, true);
  EXPECT_EQ(std::ranges::count(csv, '\n'), 1 + 4 * 2);
  EXPECT_NE(csv.find("kl,0,0,0,5,1,1.2,0.3,0.4,ratio,0.1,0,0.1\n"), std::string::npos) << csv;
}

// With a negative advantage a criterion predicts the opposite of its direction.
TEST(Study, PredictionsAreOfTheAdvantageTimesTheDirection) {
  SeedOutcome seed;
  for (const double advantage : {1.0, -1.0, -2.0}) seed.outside.push_back({0, 0, 5, advantage, 1.2, 0.3});
  seed.unmasked_change = {0.1, 0.1, -0.1};
  seed.criteria = {{"ratio", {1, 1, 1}, {true, true, true}, {0, 0, 0}},
                   {"other", {1, -1, 1}, {true, true, true}, {0, 0, 0}}};
  seed.parts = {{1, 0.3, 0.1, 0.2, -0.4}, {2, -0.5, 0.3, -0.6, 0.8}, {0, 0.1, 0.2, 0.1, -0.1}};
  seed.momentum_cosine = 0.25;
  const Json study = SummarizeStudy("kl", 0.15, std::vector{seed});
  EXPECT_NEAR(study["criteria"][0]["prediction"]["pooled"], 2.0 / 3, 1e-12);
  EXPECT_EQ(study["criteria"][1]["prediction"]["pooled"], 1);
  EXPECT_EQ(study["criteria"][1]["per_seed"][0]["sign_accuracy"], 1);
  const Json& parts = study["decomposition"];
  EXPECT_NEAR(parts["own_effect_sign_accuracy"]["ratio"], 2.0 / 3, 1e-12);
  EXPECT_EQ(parts["own_effect_sign_accuracy"]["other"], 1);
  EXPECT_EQ(parts["momentum_cosine"]["mean"], 0.25);
  EXPECT_EQ(parts["median_size"],
            (Json{{"own", 0.3}, {"others", 0.2}, {"momentum", 0.2}, {"weight_decay", 0.4}}));
  EXPECT_EQ(parts["points"][1], Json({-0.5, 0.3, -0.6, 0.8, seed.parts[1].Total(), -0.1}));
}

}  // namespace
}  // namespace augur
