#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "base/file.h"
#include "base/json.h"
#include "metrics/metrics_file.h"
#include "metrics/progress.h"
#include "metrics/step_metrics.h"

namespace augur {
namespace {

TEST(StepMetrics, TheSplitIntoMicroBatchesChangesNothing) {
  const double values[] = {1, 2, 4, 8, 16, 3};
  const auto gather = [&](size_t piece) {
    StepMetrics metrics;
    for (size_t begin = 0; begin < 6; begin += piece) {
      double sum = 0, count = 0;
      for (size_t i = begin; i < std::min<size_t>(6, begin + piece); ++i) {
        sum += values[i];
        ++count;
        metrics.AddSpread("length", values[i]);
      }
      metrics.AddMean("loss", sum, count);
      metrics.AddSum("tokens", count);
    }
    metrics.AddMean("absent", 0, 0);
    metrics.Set("lr", 0.5);
    return metrics.Values();
  };
  const Metrics whole = gather(6);
  EXPECT_EQ(whole, (Metrics{{"length/max", 16},
                            {"length/mean", 34.0 / 6},
                            {"length/min", 1},
                            {"loss", 34.0 / 6},
                            {"lr", 0.5},
                            {"tokens", 6}}));
  for (const size_t piece : {1, 2, 4, 5}) EXPECT_EQ(gather(piece), whole);
}

class MetricsFileTest : public testing::Test {
 protected:
  void SetUp() override {
    run_ = std::filesystem::path(testing::TempDir()) / "metrics_run";
    std::filesystem::remove_all(run_);
    std::filesystem::create_directories(run_);
  }
  std::filesystem::path run_;
};

TEST_F(MetricsFileTest, AResumedRunWritesEachStepOnce) {
  const auto path = run_ / kMetricsFile;
  for (int64_t step = 1; step <= 5; ++step)
    AppendMetrics(run_, step, {{"x", 0.1 * static_cast<double>(step)}});
  const std::string straight = ReadFile(path);
  std::ofstream(path, std::ios::app) << "{\"step\":6,\"da";  // killed here
  KeepLinesUpToStep(path, 3);
  for (int64_t step = 4; step <= 5; ++step)
    AppendMetrics(run_, step, {{"x", 0.1 * static_cast<double>(step)}});
  EXPECT_EQ(ReadFile(path), straight);
  KeepLinesUpToStep(run_ / "absent.jsonl", 3);
  KeepLinesUpToStep(path, -1);
  EXPECT_EQ(ReadFile(path), "");
}

TEST_F(MetricsFileTest, TheLastStepIsTheGreatestOfWholeLines) {
  const auto path = run_ / kMetricsFile;
  EXPECT_EQ(LastStep(path), -1);
  for (const int64_t step : {3, 5, 4}) AppendMetrics(run_, step, {{"x", 1}});
  std::ofstream(path, std::ios::app) << "{\"step\":6,\"data\":{}}";  // without its end
  EXPECT_EQ(LastStep(path), 5);
}

TEST_F(MetricsFileTest, WhatIsNotFiniteIsNull) {
  AppendMetrics(run_, 1, {{"a", std::numeric_limits<double>::quiet_NaN()}, {"b", INFINITY}, {"c", 1e-300}});
  EXPECT_EQ(ReadFile(run_ / kMetricsFile), "{\"step\":1,\"data\":{\"a\":null,\"b\":null,\"c\":1e-300}}\n");
}

TEST(Progress, ALongStageShowsItselfThoughNothingIsHeardOfIt) {
  testing::internal::CaptureStderr();
  {
    Progress progress("train", "step", 3);
    progress.Within({"updating", 0, 512, "tokens"});
    std::this_thread::sleep_for(std::chrono::seconds(3));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "train: step 0/3  updating: 0/512 tokens\n");
}

TEST(Progress, AShortStageShowsNothing) {
  testing::internal::CaptureStderr();
  {
    Progress progress("train", "step", 3);
    progress.Within({"updating", 0, 512, "tokens"});
    progress.Update(1);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Progress, AStageKeepsTheFiguresOfTheLastUnit) {
  testing::internal::CaptureStderr();
  {
    Progress progress("train", "step", 3);
    progress.Update(1, "reward 0.41  acc 38.1%  masked 1.2%");
    progress.Within({"updating", 0, 512, "tokens"});
    std::this_thread::sleep_for(std::chrono::milliseconds(2400));
  }
  const std::string shown = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(
      shown.starts_with("train: step 1/3  reward 0.41  acc 38.1%  masked 1.2%  updating: 0/512 tokens"))
      << shown;
}

TEST(ProgressLine, KeepsTheStageAndAsManyFiguresAsFit) {
  const auto line = [](size_t width) {
    return ProgressLine("train", 20, 80, "reward 0.41  acc 38.1%", "updating: 1/2 tokens", 52.4, width);
  };
  EXPECT_TRUE(line(90).ends_with("░  reward 0.41  acc 38.1%  updating: 1/2 tokens  0:52 left")) << line(90);
  EXPECT_EQ(line(70), "train 20/80   reward 0.41  acc 38.1%  updating: 1/2 tokens  0:52 left");
  EXPECT_TRUE(line(65).ends_with("░  reward 0.41  updating: 1/2 tokens  0:52 left")) << line(65);
  EXPECT_TRUE(line(50).ends_with("░  updating: 1/2 tokens  0:52 left")) << line(50);
}

TEST(ProgressLine, FitsTheTerminal) {
  const std::string line = ProgressLine("train", 20, 80, "reward 0.41", "", 52.4, 80);
  EXPECT_TRUE(line.starts_with("train 20/80 █")) << line;
  EXPECT_TRUE(line.ends_with("  reward 0.41  0:52 left")) << line;
  EXPECT_EQ(ProgressLine("train", 20, 80, "reward 0.41", "", 52.4, 20), "train 20/80   reward");
  EXPECT_EQ(ProgressLine("x", 0, 0, "", "", -1, 11), "x 0/0 █████");
  for (size_t width = 0; width < 120; ++width) {
    size_t columns = 0;
    for (const char c : ProgressLine("train", 3, 7, "a 1  b 2", "updating: 1/2 tokens", 5, width))
      columns += (c & 0xC0) != 0x80;
    EXPECT_LE(columns, width);
  }
  EXPECT_EQ(ClockText(59.6), "1:00");
  EXPECT_EQ(ClockText(7509), "2:05:09");
}

}  // namespace
}  // namespace augur
