#include "rollout/growth.h"

#include <gtest/gtest.h>

namespace augur {
namespace {

constexpr int64_t kLimit = 640, kPage = 16;

double MostPages(const ResponseGrowth& growth, const std::vector<int64_t>& lengths) {
  PageForecast forecast(growth);
  for (const int64_t length : lengths) forecast.Add(length);
  return forecast.most();
}

void Live(ResponseGrowth* growth, int64_t length) {
  for (int64_t t = 1; t <= length; ++t) growth->Grown(t);
  growth->Ended(length);
}

TEST(ResponseGrowth, BeforeAnyEndedLengthsAreEquallyLikely) {
  const ResponseGrowth growth(kLimit, kPage);
  ASSERT_EQ(growth.stages(), 40);
  const std::vector<double> survival = growth.Survival();
  for (int64_t stage = 0; stage < 40; ++stage) {
    EXPECT_NEAR(survival[stage], 1 - static_cast<double>(stage) / 40, 1e-12);
  }
  // At half its length a response is there with probability 1/2.
  EXPECT_NEAR(MostPages(growth, {1}), 10.5, 0.5);
  EXPECT_NEAR(MostPages(growth, {1, 1, 1}), 3 * MostPages(growth, {1}), 1e-9);
}

TEST(ResponseGrowth, CountsOnWhatTheOthersBecame) {
  ResponseGrowth brief(kLimit, kPage), full(kLimit, kPage);
  for (int i = 0; i < 200; ++i) {
    Live(&brief, 48);
    Live(&full, kLimit);
  }
  EXPECT_NEAR(MostPages(brief, {1}), 3.5, 0.1);
  EXPECT_NEAR(MostPages(full, {1}), 40, 1.5);
  EXPECT_NEAR(MostPages(full, {1, kLimit}), 41, 1.5);  // the second one has ended long before
}

TEST(ResponseGrowth, ALongResponseIsExpectedToGrowOn) {
  ResponseGrowth growth(kLimit, kPage);
  for (int i = 0; i < 900; ++i) Live(&growth, 32);
  for (int i = 0; i < 100; ++i) Live(&growth, kLimit);
  // A tenth goes on to 40 pages, which is what those that are beyond the others' end will take.
  EXPECT_NEAR(MostPages(growth, std::vector<int64_t>(10, 1)), 40, 4);
  EXPECT_NEAR(MostPages(growth, {100}), 40, 4);
}

TEST(ResponseGrowth, ResponsesThatAreNotOverCountAsAlive) {
  ResponseGrowth growth(kLimit, kPage);
  for (int i = 0; i < 99; ++i) growth.Grown(1);
  Live(&growth, 3);
  EXPECT_GT(growth.Survival()[1], 0.98);
}

}  // namespace
}  // namespace augur
