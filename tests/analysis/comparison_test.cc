#include "analysis/comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace augur {
namespace {

RunOutcome MadeRun(int64_t seed, std::vector<std::pair<int64_t, double>> accuracy) {
  RunOutcome run;
  run.seed = seed;
  run.finished = true;
  run.curves["accuracy"] = std::move(accuracy);
  for (int64_t step = 1; step <= 20; ++step)
    run.curves["reward"].emplace_back(step, static_cast<double>(step));
  return run;
}

TEST(Comparison, FiguresOfOneRun) {
  const RunOutcome run = MadeRun(0, {{0, 0.2}, {10, 0.6}, {20, 0.4}});
  EXPECT_DOUBLE_EQ(run.FinalAccuracy(), 0.4);
  EXPECT_NEAR(run.AreaUnderAccuracy(), (10 * 0.4 + 10 * 0.5) / 20, 1e-12);
  EXPECT_DOUBLE_EQ(run.Late("reward"), 19.5);
  EXPECT_FALSE(run.Collapsed());
  EXPECT_TRUE(MadeRun(0, {{0, 0.2}, {10, 0.6}, {20, 0.29}}).Collapsed());
  RunOutcome broken = MadeRun(0, {{0, 0.2}});
  EXPECT_FALSE(broken.Collapsed());
  EXPECT_DOUBLE_EQ(broken.FinalAccuracy(), 0.2);
  broken.broke_down = true;
  EXPECT_TRUE(std::isnan(broken.FinalAccuracy()) && std::isnan(broken.AreaUnderAccuracy()));
  EXPECT_TRUE(broken.Collapsed());
}

TEST(Comparison, DifferencesArePairedBySeedAndSkipUnfinishedRuns) {
  ComparisonArm base{
      "clip",
      "",
      {MadeRun(0, {{0, 0.1}, {10, 0.5}}), MadeRun(1, {{0, 0.1}, {10, 0.7}}), MadeRun(2, {{0, 0.1}})}};
  ComparisonArm other{
      "new",
      "",
      {MadeRun(0, {{0, 0.1}, {10, 0.6}}), MadeRun(1, {{0, 0.1}, {10, 0.8}}), MadeRun(2, {{0, 0.9}})}};
  base.runs[2].finished = false;
  const Json json = SummarizeComparison(std::vector{base, other}, {.steps = 10});
  EXPECT_EQ(json["baseline"], "clip");
  EXPECT_TRUE(json["arms"][0]["minus_baseline"].is_null());
  const Json& difference = json["arms"][1]["minus_baseline"]["final_accuracy"];
  EXPECT_NEAR(difference["mean"], 0.1, 1e-12);
  EXPECT_EQ(difference["by_seed"].size(), 3u);
  EXPECT_EQ(Json::parse(difference.dump())["by_seed"][2], nullptr);
  EXPECT_NEAR(json["arms"][0]["final_accuracy"]["mean"], 0.6, 1e-12);
  // Two seeds, 0.5 and 0.7: Student's t with one degree of freedom.
  EXPECT_NEAR(json["arms"][0]["final_accuracy"]["low"], 0.6 - 12.706204736174694 * 0.1, 1e-9);
  EXPECT_EQ(json["interval"], "student-t");
  const std::string csv = ComparisonCsv(std::vector{base, other});
  EXPECT_EQ(std::ranges::count(csv, '\n'), 7);
}

TEST(Comparison, StepsThatARunWentBackBehindCountOnceAsTheyWereLast) {
  const std::filesystem::path run = std::filesystem::path(testing::TempDir()) / "augur_resumed";
  std::filesystem::create_directories(run);
  {
    std::ofstream file(run / "metrics.jsonl");
    const auto line = [&](int step, double reward, double accuracy) {
      file << Json{{"step", step},
                   {"data",
                    {{"critic/score/mean", reward},
                     {"val-core/a/acc/mean@4", accuracy},
                     {"mask/masked", reward / 10},
                     {"actor/ppo_kl", reward / 100}}}}
                  .dump()
           << "\n";
    };
    for (int step = 1; step <= 4; ++step) line(step, 1, 0.1);
    for (int step = 3; step <= 5; ++step) line(step, 2, 0.2);  // resumed after step 2
  }
  const RunOutcome outcome = ReadRunOutcome(run, 0, 5);
  using Curve = std::vector<std::pair<int64_t, double>>;
  EXPECT_EQ(outcome.curves.at("reward"), (Curve{{1, 1}, {2, 1}, {3, 2}, {4, 2}, {5, 2}}));
  EXPECT_EQ(outcome.curves.at("accuracy"), (Curve{{1, 0.1}, {2, 0.1}, {3, 0.2}, {4, 0.2}, {5, 0.2}}));
  EXPECT_DOUBLE_EQ(outcome.MeanOf("reward"), 8.0 / 5);
  EXPECT_NEAR(outcome.Late("clip_fraction"), 0.2, 1e-12);
  EXPECT_NEAR(outcome.Late("ppo_kl"), 0.02, 1e-12);
  EXPECT_TRUE(outcome.finished);
  EXPECT_EQ(outcome.note, "");
  std::filesystem::remove_all(run);
}

TEST(Comparison, MeanCurvesEndWithTheShortestRun) {
  RunOutcome brief = MadeRun(1, {{0, 0.1}, {10, 0.3}});
  brief.curves["reward"] = {{1, 3}, {2, 4}};
  const ComparisonArm arm{"clip", "", {MadeRun(0, {{0, 0.1}, {10, 0.5}, {20, 0.7}}), brief}};
  const Json curves = SummarizeComparison(std::vector{arm}, {.steps = 20})["arms"][0]["curves"];
  EXPECT_EQ(curves["accuracy"]["x"], Json({0, 10}));
  EXPECT_NEAR(curves["accuracy"]["mean"][1], 0.4, 1e-12);
  EXPECT_EQ(curves["reward"]["x"], Json({1, 2}));
  EXPECT_EQ(curves["reward"]["mean"], Json({2.0, 3.0}));
  EXPECT_EQ(curves["reward"]["low"].size(), 2u);
}

TEST(Comparison, ReadsMetricsOfARunWithRepeatedAndDamagedLines) {
  const std::filesystem::path run = std::filesystem::path(testing::TempDir()) / "augur_comparison";
  std::filesystem::create_directories(run);
  std::ofstream(run / "metrics.jsonl")
      << R"({"step":0,"data":{"val-core/a/acc/mean@4":0.25,"val-core/b/acc/mean@4":0.75}})" << '\n'
      << R"({"step":1,"data":{"critic/score/mean":0.1}})" << '\n'
      << R"({"step":1,"data":{"critic/score/mean":0.5,"mask/masked":null}})" << "\n{\"step\":2,\"da";
  const RunOutcome outcome = ReadRunOutcome(run, 3, 2);
  EXPECT_DOUBLE_EQ(outcome.FinalAccuracy(), 0.5);
  EXPECT_DOUBLE_EQ(outcome.Late("reward"), 0.5);
  EXPECT_DOUBLE_EQ(outcome.MeanOf("reward"), 0.5);
  EXPECT_TRUE(std::isnan(outcome.Late("clip_fraction")));
  EXPECT_FALSE(outcome.finished);
  EXPECT_TRUE(outcome.note.starts_with("1 of 2 steps"));
  EXPECT_FALSE(ReadRunOutcome(run / "absent", 3, 2).finished);
  const RunOutcome shorter = ReadRunOutcome(run, 3, 0);
  EXPECT_TRUE(shorter.finished);
  EXPECT_TRUE(std::isnan(shorter.Late("reward")));  // step 1 lies beyond
  std::filesystem::remove_all(run);
}

TEST(Comparison, ALineHoldsWhatTheRunDid) {
  RunOutcome run = MadeRun(3, {{0, 0.2}, {10, 0.6}, {20, 0.3}});
  EXPECT_FALSE(run.Collapsed());  // half of its best is not below it
  const char* const names[] = {"response_length", "ppo_kl", "clip_fraction", "outside", "updates"};
  for (int i = 0; i < 5; ++i) run.curves[names[i]] = {{1, i + 1}};
  const std::string csv = ComparisonCsv(std::vector{ComparisonArm{"clip", "", {run}}});
  EXPECT_EQ(
      csv.substr(0, csv.find('\n')),
      "mask,seed,finished,final_accuracy,auc_accuracy,reward,response_length,ppo_kl,clip_fraction,outside,"
      "updates,collapsed");
  EXPECT_NE(csv.find("\nclip,3,1,0.3,0.425,19.5,1,2,3,4,5,0\n"), std::string::npos) << csv;
}

}  // namespace
}  // namespace augur
