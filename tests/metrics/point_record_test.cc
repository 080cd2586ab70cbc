#include "metrics/point_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "message_of.h"

namespace augur {
namespace {

std::vector<TokenPoint> Points(int inside, int outside) {
  std::vector<TokenPoint> points(static_cast<size_t>(inside + outside));
  for (int i = 0; i < inside + outside; ++i) {
    points[i].ratio = static_cast<float>(i);
    points[i].flags = i < inside ? 0 : kPointOutside;
  }
  return points;
}

int CountOutside(const PointsRecord& record) {
  int count = 0;
  for (const TokenPoint& p : record.points) count += p.flags & kPointOutside;
  return count;
}

TEST(PointRecord, SamplesHalfFromTheOutsideTokensWhereThereAreEnough) {
  EXPECT_EQ(CountOutside(SamplePoints(1, Points(1000, 10), 100, 7)), 10);
  EXPECT_EQ(CountOutside(SamplePoints(1, Points(1000, 500), 100, 7)), 50);
  EXPECT_EQ(CountOutside(SamplePoints(1, Points(20, 500), 100, 7)), 80);
  for (const auto& points : {Points(1000, 10), Points(1000, 500), Points(20, 500)}) {
    EXPECT_EQ(SamplePoints(1, points, 100, 7).points.size(), 100u);
  }
  const PointsRecord all = SamplePoints(1, Points(3, 2), 100, 7);
  EXPECT_EQ(all.points.size(), 5u);
  EXPECT_EQ(all.tokens, 5);
  EXPECT_EQ(all.outside, 2);
}

TEST(PointRecord, DrawsTheSameTokensForTheSameSeedAndStepOnly) {
  const auto points = Points(1000, 500);
  EXPECT_EQ(ToJson(SamplePoints(4, points, 64, 1)), ToJson(SamplePoints(4, points, 64, 1)));
  EXPECT_NE(ToJson(SamplePoints(4, points, 64, 1)), ToJson(SamplePoints(4, points, 64, 2)));
  EXPECT_NE(ToJson(SamplePoints(4, points, 64, 1))["points"],
            ToJson(SamplePoints(5, points, 64, 1))["points"]);
}

TEST(PointRecord, ComesBackFromItsLine) {
  PointsRecord record{9, 100, 2, {{1.25f, 0.5f, -0.125f, 1, 3}, {NAN, INFINITY, 0, -1, 0}}};
  const PointsRecord back = PointsFromJson(ParseJson(ToJson(record).dump(), "line"), "line");
  EXPECT_EQ(back.step, 9);
  EXPECT_EQ(back.points[0].direction, -0.125f);
  EXPECT_EQ(back.points[0].flags, 3);
  EXPECT_TRUE(std::isnan(back.points[1].ratio));
  EXPECT_TRUE(MessageOf([] { PointsFromJson(Json{{"step", 1}}, "f:2"); }).starts_with("f:2"));
}

TEST(PointRecord, CountsAllTokensHoweverFewItKeeps) {
  const PointsRecord record = SamplePoints(6, Points(1000, 500), 100, 7);
  EXPECT_EQ(record.step, 6);
  EXPECT_EQ(record.tokens, 1500);
  EXPECT_EQ(record.outside, 500);
  for (size_t i = 1; i < record.points.size(); ++i) {
    EXPECT_LT(record.points[i - 1].ratio, record.points[i].ratio);  // in the order of the tokens
  }
}

TEST(PointRecord, KeepsFiveDigitsOfEveryNumber) {
  const TokenPoint point{1.23456f, 0.00098765f, -34567.8f, 0.5f, 5};
  const PointsRecord back = PointsFromJson(ToJson(PointsRecord{3, 1, 1, {point}}), "line");
  EXPECT_EQ(back.tokens, 1);
  EXPECT_EQ(back.outside, 1);
  EXPECT_NEAR(back.points[0].ratio, 1.2346, 1e-6);
  EXPECT_NEAR(back.points[0].divergence, 0.00098765, 1e-9);
  EXPECT_NEAR(back.points[0].direction, -34568, 1e-1);
  EXPECT_EQ(back.points[0].advantage, 0.5f);
  EXPECT_EQ(back.points[0].flags, 5);
}

}  // namespace
}  // namespace augur
