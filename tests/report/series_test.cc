#include "report/series.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/error.h"

namespace augur {
namespace {

Json Step(int64_t step, Json data) { return {{"step", step}, {"data", std::move(data)}}; }

std::vector<int64_t> Kept(EvenSteps even, const std::vector<int64_t>& steps) {
  std::vector<int64_t> kept;
  for (const int64_t step : steps) {
    if (even.Stays(step)) kept.push_back(step);
  }
  return kept;
}

TEST(EvenSteps, KeepsTheFirstOfEveryStride) {
  std::vector<int64_t> steps(100);
  std::iota(steps.begin(), steps.end(), 3);
  const std::vector<int64_t> kept = Kept(EvenSteps(steps, 30), steps);
  ASSERT_EQ(kept.size(), 25u);
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(kept[i], 3 + 4 * static_cast<int64_t>(i));
  EXPECT_EQ(Kept(EvenSteps(kept, 30), kept), kept);  // picked once, they all stay
  EXPECT_EQ(Kept(EvenSteps(steps, 100), steps), steps);
}

TEST(SeriesTable, ARepeatedStepTakesThePlaceOfAllThatFollowed) {
  SeriesTable table;
  for (int64_t step = 1; step <= 5; ++step) table.Add(Step(step, {{"a", step}, {"only", step}}), "");
  table.Add(Step(3, {{"a", 30}}), "");
  EXPECT_EQ(table.Shown(), Json::parse(R"({"steps": [1, 2, 3],
      "series": {"a": {"y": [1.0, 2.0, 30.0]}, "only": {"x": [1, 2], "y": [1.0, 2.0]}}})"));
  table.Add(Step(1, {{"a", 10}}), "");
  EXPECT_EQ(table.Shown(), Json::parse(R"({"steps": [1], "series": {"a": {"y": [10.0]}}})"));
}

TEST(SeriesTable, LeavesOutWhatIsNoFiniteNumberAndRefusesOtherLines) {
  SeriesTable table;
  table.Add(Step(1, {{"a", nullptr}, {"b", "text"}, {"c", INFINITY}, {"d", 2}}), "");
  EXPECT_EQ(table.Shown()["series"], Json::parse(R"({"d": {"y": [2.0]}})"));
  EXPECT_THROW(table.Add({{"step", "1"}, {"data", Json::object()}}, "metrics.jsonl:2"), Error);
  EXPECT_THROW(table.Add({{"step", 1}}, ""), Error);
}

TEST(SeriesTable, NewestAreTheLastValuesInTheirOrder) {
  SeriesTable table;
  for (int64_t step = 1; step <= 5; ++step) table.Add(Step(step, {{"a", step}}), "");
  EXPECT_EQ(table.Newest("a", 2), (std::vector<double>{4, 5}));
  EXPECT_EQ(table.Newest("a", 9).size(), 5u);
  EXPECT_TRUE(table.Newest("b", 2).empty());
}

TEST(SeriesTable, ThinningKeepsEvaluationsTheLastStepAndEachValueAtItsStep) {
  SeriesTable table;
  for (int64_t step = 1; step <= 1001; ++step) {
    Json data = {{"a", step}};
    if (step % 50 == 0) data["val-core/x/acc/mean@4"] = step;
    if (step % 3 == 0) data["rare"] = step;
    table.Add(Step(step, data), "");
  }
  table.Thin(100);
  const Json shown = table.Shown();
  const auto steps = shown["steps"].get<std::vector<int64_t>>();
  EXPECT_LE(steps.size(), 121u);
  EXPECT_GE(steps.size(), 70u);
  EXPECT_EQ(steps.back(), 1001);
  EXPECT_EQ(table.last_step(), 1001);
  EXPECT_EQ(shown["series"]["val-core/x/acc/mean@4"]["y"].size(), 20u);
  for (const auto& [name, series] : shown["series"].items()) {
    const auto x = (series.contains("x") ? series["x"] : shown["steps"]).get<std::vector<double>>();
    EXPECT_EQ(series["y"].get<std::vector<double>>(), x) << name;
  }
}

std::vector<PointsRecord> Records(int64_t steps, size_t points) {
  std::vector<PointsRecord> records;
  for (int64_t step = 1; step <= steps; ++step) {
    PointsRecord record{.step = step, .tokens = 1000, .outside = 7, .points = {}};
    for (size_t i = 0; i < points; ++i) record.points.push_back({.ratio = static_cast<float>(i)});
    records.push_back(std::move(record));
  }
  return records;
}

TEST(ShownPoints, TokensAreThoseOfTheStepsBetweenToo) {
  const Json shown = ShownPoints(Records(5, 4), 100, 8);  // one in eight steps
  EXPECT_EQ(shown["tokens"], 5 * 8 * 1000);
  EXPECT_EQ(shown["outside"], 5 * 8 * 7);
  EXPECT_EQ(shown["points"].size(), 20u);
  EXPECT_EQ(ShownPoints(Records(5, 4), 100, 1)["tokens"], 5000);
  EXPECT_TRUE(ShownPoints({}, 100, 1).is_null());
}

TEST(ShownPoints, AreThinnedEvenlyOverAllSteps) {
  const Json points = ShownPoints(Records(10, 10), 30, 1)["points"];
  ASSERT_EQ(points.size(), 25u);  // one in four
  EXPECT_EQ(points.front()[0], 1);
  EXPECT_EQ(points.back()[0], 10);
  EXPECT_EQ(points[1], Json::parse("[1, 4.0, 0.0, 0.0, 0.0, 0]"));
}

TEST(ReadSeries, SaysWhatIsMissingAndHowManyStepsAreShown) {
  const std::filesystem::path run = std::filesystem::path(testing::TempDir()) / "read_series";
  std::filesystem::remove_all(run);
  std::filesystem::create_directories(run);
  Notes notes;
  EXPECT_TRUE(ReadSeries(run, 10, &notes).is_null());
  EXPECT_EQ(notes, (Notes{"no metrics.jsonl: no curves"}));
  std::ofstream file(run / "metrics.jsonl");
  for (int64_t step = 1; step <= 40; ++step) file << Step(step, {{"a", step}}).dump() << '\n';
  file.close();
  notes.clear();
  EXPECT_EQ(ReadSeries(run, 10, &notes)["steps"], Json::parse("[1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 40]"));
  EXPECT_EQ(notes, (Notes{"40 steps: the curves show 11 of them"}));
}

}  // namespace
}  // namespace augur
