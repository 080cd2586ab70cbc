#include "analysis/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace augur {
namespace {

const std::vector<double> kDifferences = {0.3, -0.1, 0.25, 0.6, 0.05, -0.02, 0.4};

// Expected values are scipy 1.x's: stats.sem, ttest_1samp, binomtest, 2 * t.sf, t.ppf, t.interval,
// bootstrap(method="percentile").
TEST(Statistics, MeanAndStandardErrorAgreeWithScipy) {
  EXPECT_NEAR(Mean(kDifferences), 0.21142857142857144, 1e-15);
  EXPECT_NEAR(StandardError(kDifferences), 0.09417381527257561, 1e-15);
  EXPECT_TRUE(std::isnan(StandardError(std::vector{1.0})));
}

TEST(Statistics, PairedTestAgreesWithScipy) {
  const PairedTest test = TestDifferences(kDifferences);
  EXPECT_NEAR(test.t, 2.2450887310513536, 1e-12);
  EXPECT_NEAR(test.p, 0.06588448591600536, 1e-12);
  EXPECT_EQ(test.below, 2);
  EXPECT_EQ(test.above, 5);
  EXPECT_NEAR(test.sign_p, 0.453125, 1e-12);
}

TEST(Statistics, SignTestAgreesWithScipyOnThePapersSeeds) {
  std::vector<double> seeds(61, -1.0);
  std::fill(seeds.begin(), seeds.begin() + 23, 1.0);
  EXPECT_NEAR(TestDifferences(seeds).sign_p, 0.07217743850092258, 1e-12);
}

TEST(Statistics, StudentTailsAgreeWithScipy) {
  const struct {
    double t, freedom, p;
  } cases[] = {{0.5, 3, 0.651447964848151},    {2, 10, 0.0733880347707404},
               {10, 2, 0.00985245702332569},   {1e-3, 60, 0.9992054330231418},
               {5, 60, 5.288024210674264e-06}, {40, 5, 1.8411962171772954e-07}};
  for (const auto& c : cases) EXPECT_NEAR(StudentTwoSided(c.t, c.freedom), c.p, 1e-11 * c.p + 1e-14) << c.t;
}

TEST(Statistics, EqualDifferencesHaveNoPValueAndNoneDoNotCrash) {
  EXPECT_TRUE(std::isnan(TestDifferences(std::vector{0.0, 0.0, 0.0}).p));
  EXPECT_TRUE(std::isnan(TestDifferences({}).p));
  EXPECT_TRUE(std::isnan(TestDifferences(std::vector{2.0, 2.0}).p));
}

TEST(Statistics, MeanIntervalAgreesWithScipy) {
  const std::vector<double> values = {0.31, 0.35, 0.29, 0.44, 0.38, 0.33, 0.36, 0.41};
  const Interval interval = MeanInterval(values, 0.95);
  EXPECT_NEAR(interval.low, 0.3167256163747788, 1e-12);
  EXPECT_NEAR(interval.high, 0.4007743836252212, 1e-12);
  const Interval two = MeanInterval(std::vector{0.013, 0.051}, 0.95);  // far beyond its two values
  EXPECT_NEAR(two.low, -0.20941788998731914, 1e-12);
  EXPECT_NEAR(two.high, 0.27341788998731914, 1e-12);
  EXPECT_TRUE(std::isnan(MeanInterval(std::vector{0.5}, 0.95).low));
  EXPECT_TRUE(std::isnan(MeanInterval({}, 0.95).high));
}

TEST(Statistics, StudentQuantilesAgreeWithScipy) {
  const struct {
    double level, freedom, t;
  } cases[] = {{0.95, 1, 12.706204736174694},
               {0.95, 7, 2.364624251592784},
               {0.99, 4, 4.604094871349992},
               {0.5, 2, 0.8164965809277261},
               {0.999, 60, 3.460200469196392}};
  for (const auto& c : cases) EXPECT_NEAR(StudentQuantile(c.level, c.freedom), c.t, 1e-9 * c.t) << c.t;
}

TEST(Statistics, BootstrapIntervalAgreesWithScipyAndRepeats) {
  const std::vector<double> values = {0.31, 0.35, 0.29, 0.44, 0.38, 0.33, 0.36, 0.41};
  const Interval interval = BootstrapMean(values, 0.95, 50000, 1);
  EXPECT_NEAR(interval.low, 0.3275, 0.0015);
  EXPECT_NEAR(interval.high, 0.3925, 0.0015);
  EXPECT_EQ(interval.low, BootstrapMean(values, 0.95, 50000, 1).low);
  EXPECT_TRUE(std::isnan(BootstrapMean({}, 0.95, 100, 1).low));
}

TEST(Statistics, QuantilesAgreeWithNumpy) {
  const std::vector<double> sorted = {1, 2, 4, 8, 9};
  EXPECT_NEAR(Quantile(sorted, 0.1), 1.4, 1e-12);
  EXPECT_NEAR(Quantile(sorted, 0.5), 4, 1e-12);
  EXPECT_NEAR(Quantile(sorted, 0.77), 8.08, 1e-12);
  EXPECT_EQ(Quantile(sorted, 1), 9);
}

TEST(Statistics, EcdfReachesOneAtTheLargestValue) {
  std::vector<double> values;
  for (int i = 999; i >= 0; --i) values.push_back(i);
  const auto points = Ecdf(values, 50);
  ASSERT_EQ(points.size(), 50u);
  EXPECT_EQ(points.front().x, 0);
  EXPECT_EQ(points.back().x, 999);
  EXPECT_EQ(points.back().f, 1);
  for (const EcdfPoint& p : points) EXPECT_NEAR(p.f, (p.x + 1) / 1000, 1e-12);
  EXPECT_EQ(Ecdf({3, 1, 2}, 50).size(), 3u);
  EXPECT_TRUE(Ecdf({}, 50).empty());
}

}  // namespace
}  // namespace augur
