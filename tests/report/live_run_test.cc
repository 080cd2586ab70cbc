#include "report/live_run.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>

#include "report/watch.h"

namespace augur {
namespace {

namespace fs = std::filesystem;

class LiveRunTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(run_);
    fs::create_directories(run_);
    std::ofstream(run_ / "config.yaml") << "train:\n  steps: 60\n";
  }
  void TearDown() override { Release(); }

  void Append(const char* name, const std::string& text) {
    std::ofstream(run_ / name, std::ios::app) << text;
  }
  void AppendSteps(int64_t first, int64_t last, double seconds) {
    for (int64_t step = first; step <= last; ++step) {
      const Json line = {{"step", step}, {"data", {{"timing_s/step", seconds}}}};
      Append("metrics.jsonl", line.dump() + "\n");
    }
  }
  void AppendPoints(int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      const Json line = {
          {"step", step}, {"tokens", 1000}, {"outside", 7}, {"points", {{1.0, 0.1, 0.0, 1.0, 0}}}};
      Append("points.jsonl", line.dump() + "\n");
    }
  }
  // As a process that trains does.
  void Hold() {
    lock_ = ::open((run_ / ".lock").c_str(), O_RDWR | O_CREAT, 0600);
    ASSERT_EQ(::flock(lock_, LOCK_EX | LOCK_NB), 0);
  }
  void Release() {
    if (lock_ >= 0) ::close(lock_);
    lock_ = -1;
  }
  static std::string State(LiveRun* live) {
    live->Update();
    const Json state = live->Shown()["state"];
    return state["kind"].get<std::string>() + ": " + state["text"].get<std::string>();
  }

  const fs::path run_ =
      fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
  int lock_ = -1;
};

TEST_F(LiveRunTest, TimeLeftIsThatOfTheStepsStillToCome) {
  LiveRun live(run_, 0);
  Hold();
  EXPECT_EQ(State(&live), "running: step 0 of 60");
  AppendSteps(1, 50, 30.0);
  EXPECT_EQ(State(&live), "running: step 50 of 60, about 5:00 left");
  // After a resume from step 20 it is again that of the rest, by the newest steps.
  AppendSteps(20, 40, 3.0);
  EXPECT_EQ(State(&live), "running: step 40 of 60, about 1:00 left");
  AppendSteps(41, 60, 3.0);
  EXPECT_EQ(State(&live), "running: step 60 of 60");
}

TEST_F(LiveRunTest, SaysWhoTrainsIt) {
  LiveRun live(run_, 0);
  AppendSteps(1, 10, 1.0);
  EXPECT_TRUE(State(&live).starts_with("stopped: step 10 of 60: no process of this machine trains it"));
  Append("summary.json", "{}");  // of an earlier end; the run was given more steps
  EXPECT_TRUE(State(&live).starts_with("stopped: step 10 of 60"));
  AppendSteps(11, 60, 1.0);
  EXPECT_EQ(State(&live), "finished: step 60 of 60");
  Hold();
  EXPECT_EQ(State(&live), "running: step 60 of 60");
  fs::remove_all(run_);
  EXPECT_TRUE(State(&live).starts_with("gone: "));
  EXPECT_EQ(live.Shown()["metrics"]["steps"].size(), 60u);  // what was known stays
}

TEST_F(LiveRunTest, VersionGrowsOnlyWithWhatIsShown) {
  LiveRun live(run_, 0);
  AppendSteps(1, 3, 1.0);
  live.Update();
  const uint64_t version = live.version();
  live.Update();
  EXPECT_EQ(live.version(), version);
  Append("metrics.jsonl", R"({"step": 4, "data": {"timing_s)");  // half a line
  live.Update();
  EXPECT_EQ(live.version(), version);
  Append("metrics.jsonl", "/step\": 2}}\n");
  live.Update();
  EXPECT_EQ(live.version(), version + 1);
  EXPECT_EQ(live.Shown()["version"], version + 1);
  EXPECT_EQ(live.Shown()["metrics"]["series"]["timing_s/step"]["y"], Json::parse("[1.0, 1.0, 1.0, 2.0]"));
}

// More steps than are kept: one in `stride` of them stands for all, whether they come at once or one by one.
TEST_F(LiveRunTest, TokensOfThinnedPointsAreThoseOfAllSteps) {
  for (const int64_t part : {2048, 64}) {
    fs::remove(run_ / "points.jsonl");
    LiveRun live(run_, 0);
    for (int64_t step = 1; step <= 2048; step += part) {
      AppendPoints(step, step + part - 1);
      live.Update();
    }
    const Json points = live.Shown()["points"];
    EXPECT_LT(points["points"].size(), 1024u);
    EXPECT_NEAR(points["tokens"].get<double>(), 2048e3, 20e3) << part;
    EXPECT_NEAR(points["outside"].get<double>(), 7 * 2048, 140) << part;
  }
}

TEST_F(LiveRunTest, AReplacedFileIsReadFromItsBeginning) {
  LiveRun live(run_, 0);
  AppendSteps(1, 20, 1.0);
  AppendPoints(1, 20);
  live.Update();
  for (const char* name : {"metrics.jsonl", "points.jsonl"}) fs::remove(run_ / name);
  AppendSteps(1, 5, 1.0);
  AppendPoints(1, 5);
  live.Update();
  EXPECT_EQ(live.Shown()["metrics"]["steps"], Json::parse("[1, 2, 3, 4, 5]"));
  EXPECT_EQ(live.Shown()["points"]["tokens"], 5000);
}

TEST_F(LiveRunTest, CurvesOfLongRunsAreThinnedTheMoreRunsThereAre) {
  AppendSteps(1, 3000, 1.0);
  LiveRun alone(run_, 0), among(run_, 9);
  alone.Update();
  among.Update();
  const size_t many = alone.Shown()["metrics"]["steps"].size(),
               few = among.Shown()["metrics"]["steps"].size();
  EXPECT_GE(many, 500u);
  EXPECT_LE(many, 1001u);
  EXPECT_LE(few, 101u);
  EXPECT_EQ(alone.Shown()["metrics"]["steps"].back(), 3000);
}

TEST_F(LiveRunTest, NewsAreTheRunsThatChanged) {
  AppendSteps(1, 3, 1.0);
  LiveRuns runs(std::vector{run_, run_});
  const auto news = [&](const std::string& since) {
    return Json::parse(runs.Answer("/runs.json?since=" + since).body)["runs"];
  };
  const Json first = news("");
  EXPECT_EQ(first[0]["version"], 1);
  EXPECT_EQ(news("1,1"), Json::parse("[null, null]"));
  EXPECT_TRUE(news("1,0")[0].is_null());
  EXPECT_EQ(news("1,0")[1]["version"], 1);
  EXPECT_EQ(runs.Answer("/config.yaml").status, 404u);
}

}  // namespace
}  // namespace augur
