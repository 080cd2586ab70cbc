#include "analysis/frontier.h"

#include <gtest/gtest.h>

#include <cmath>

namespace augur {
namespace {

RunOutcome MakeRun(std::vector<double> accuracies, bool finished = true, int64_t seed = 0) {
  RunOutcome run;
  run.seed = seed;
  run.finished = finished;
  for (size_t i = 0; i < accuracies.size(); ++i) {
    run.curves["accuracy"].emplace_back(static_cast<int64_t>(i), accuracies[i]);
  }
  return run;
}

TEST(Frontier, ARunBreaksBelowHalfItsBestOrBelowItsStart) {
  EXPECT_FALSE(IsBroken(MakeRun({0.3, 0.4, 0.5})));
  EXPECT_FALSE(IsBroken(MakeRun({0.3, 0.6, 0.3})));      // half its best, and its start: neither is below
  EXPECT_TRUE(IsBroken(MakeRun({0.3, 0.6, 0.299})));     // below both
  EXPECT_TRUE(IsBroken(MakeRun({0.3, 0.29})));           // ends below its start
  EXPECT_TRUE(IsBroken(MakeRun({0.1, 0.6, 0.2, 0.5})));  // fell below half its best, and came back
  EXPECT_FALSE(IsBroken(MakeRun({0.3, 0.1}, false)));    // not finished: not judged
  RunOutcome breakdown = MakeRun({0.3}, false);
  breakdown.broke_down = true;
  EXPECT_TRUE(IsBroken(breakdown));
}

TEST(Frontier, ARunThatBrokeDownHasNoFinalAccuracy) {
  const std::vector<FrontierAxis> axes = {{"lr_factor", {"1", "4"}}};
  RunOutcome breakdown = MakeRun({0.5}, false, 1);
  breakdown.broke_down = true;
  const std::vector<FrontierArm> arms = {
      {"none", "r", {{MakeRun({0.2, 0.3}), breakdown}, {breakdown, breakdown}}}};
  const Json cells = SummarizeFrontier(axes, arms, {.resamples = 500})["arms"][0]["cells"];
  EXPECT_EQ(cells[0]["final_accuracy"], 0.3);
  EXPECT_TRUE(std::isnan(cells[1]["final_accuracy"].get<double>()));
  EXPECT_TRUE(std::isnan(cells[1]["runs"][0]["final"].get<double>()));
  EXPECT_EQ(cells[1]["runs"][0]["best"], 0.5);
  EXPECT_EQ(cells[1]["broken"], 2);
}

TEST(Frontier, CellsRunThroughTheFirstAxisFirst) {
  const std::vector<FrontierAxis> axes = {{"a", {"1", "2"}}, {"b", {"x", "y", "z"}}};
  EXPECT_EQ(CellCount(axes), 6u);
  EXPECT_EQ(CellPlace(axes, 0), (std::vector<size_t>{0, 0}));
  EXPECT_EQ(CellPlace(axes, 1), (std::vector<size_t>{1, 0}));
  EXPECT_EQ(CellPlace(axes, 5), (std::vector<size_t>{1, 2}));
}

TEST(Frontier, TheSurvivingShareIsBySeedAndPairedWithTheFirstArm) {
  const std::vector<FrontierAxis> axes = {{"lr_factor", {"1", "4"}}};
  const RunOutcome good0 = MakeRun({0.2, 0.5}), good1 = MakeRun({0.2, 0.5}, true, 1);
  const RunOutcome bad0 = MakeRun({0.2, 0.1}), bad1 = MakeRun({0.2, 0.1}, true, 1);
  const std::vector<FrontierArm> arms = {{"none", "r", {{good0, good1}, {bad0, bad1}}},
                                         {"better", "r", {{good0, good1}, {good0, bad1}}}};
  const Json json = SummarizeFrontier(axes, arms, {.resamples = 500});
  EXPECT_EQ(json["arms"][0]["surviving"]["mean"], 0.5);
  EXPECT_EQ(json["arms"][0]["surviving"]["low"], 0.5);
  EXPECT_EQ(json["arms"][1]["surviving"]["by_seed"], (std::vector<double>{1, 0.5}));
  EXPECT_EQ(json["arms"][1]["minus_baseline"]["mean"], 0.25);
  EXPECT_EQ(json["arms"][1]["cells"][1]["broken"], 1);
  EXPECT_EQ(json["arms"][1]["cells"][1]["values"]["lr_factor"], "4");
  EXPECT_NEAR(json["arms"][1]["cells"][1]["final_accuracy"].get<double>(), 0.3, 1e-12);
  EXPECT_EQ(json["unfinished"], 0);
}

TEST(Frontier, ASeedWithAMissingRunIsLeftOut) {
  const std::vector<FrontierAxis> axes = {{"lr_factor", {"1", "4"}}};
  RunOutcome absent;
  absent.seed = 1;
  const std::vector<FrontierArm> arms = {
      {"none", "r", {{MakeRun({0.2, 0.5}), MakeRun({0.2, 0.5}, true, 1)}, {MakeRun({0.2, 0.5}), absent}}}};
  const Json json = SummarizeFrontier(axes, arms, {.resamples = 500});
  EXPECT_EQ(json["arms"][0]["surviving"]["mean"], 1);
  EXPECT_EQ(json["arms"][0]["surviving"]["by_seed"].dump(), "[1.0,null]");
  EXPECT_EQ(json["unfinished"], 1);
  EXPECT_EQ(FrontierCsv(axes, arms).substr(0, 61),
            "mask,seed,lr_factor,finished,start,best,final,broken,updates\n");
}

TEST(Frontier, CellsAndLinesSayWhatTheirRunsDid) {
  const std::vector<FrontierAxis> axes = {{"lr_factor", {"1", "4"}}};
  RunOutcome good = MakeRun({0.2, 0.6, 0.5}), bad = MakeRun({0.2, 0.7, 0.1}, true, 1);
  good.curves["updates"] = {{1, 4}, {2, 2}};
  bad.curves["updates"] = {{1, 1}};
  RunOutcome unfinished = MakeRun({0.9}, false);
  unfinished.curves["updates"] = {{1, 100}};
  const std::vector<FrontierArm> arms = {{"none", "rule", {{good, bad}, {unfinished, bad}}}};
  const Json cells = SummarizeFrontier(axes, arms, {.resamples = 100})["arms"][0]["cells"];
  EXPECT_EQ(cells[0]["updates"], 2);
  EXPECT_EQ(cells[1]["updates"], 1);
  EXPECT_EQ(cells[0]["counted"], 2);
  EXPECT_EQ(cells[1]["counted"], 1);
  EXPECT_EQ(cells[1]["final_accuracy"], 0.1);
  EXPECT_EQ(cells[0]["runs"][0]["best"], 0.6);
  EXPECT_EQ(cells[0]["runs"][0]["start"], 0.2);
  EXPECT_EQ(cells[1]["at"], Json({1}));
  const std::string csv = FrontierCsv(axes, arms);
  EXPECT_NE(csv.find("none,0,1,1,0.2,0.6,0.5,0,3\n"), std::string::npos) << csv;
  EXPECT_NE(csv.find("none,1,4,1,0.2,0.7,0.1,1,1\n"), std::string::npos) << csv;
  EXPECT_NE(csv.find("none,0,4,0,0.9,0.9,0.9,0,100\n"), std::string::npos) << csv;
}

}  // namespace
}  // namespace augur
