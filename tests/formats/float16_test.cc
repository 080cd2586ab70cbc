#include "formats/float16.h"

#include <gtest/gtest.h>

#include <cmath>

namespace augur {
namespace {

// The value by the definition of IEEE binary16.
double HalfValue(uint16_t half) {
  const int exponent = (half >> 10) & 31, fraction = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

bool IsFiniteHalf(uint32_t half) { return (half & 0x7C00) != 0x7C00; }

TEST(Float16Test, EveryFiniteHalfHasItsValueAndRoundTrips) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    if (!IsFiniteHalf(half)) continue;
    const float value = HalfToFloat(static_cast<uint16_t>(half));
    ASSERT_EQ(value, HalfValue(static_cast<uint16_t>(half)));
    ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0);
    ASSERT_EQ(FloatToHalf(value), half);
  }
}

TEST(Float16Test, HalvesRoundToNearestAndTiesToEven) {
  for (uint16_t half = 0; half < 0x7BFF; ++half) {
    const uint16_t next = half + 1, even = half % 2 == 0 ? half : next;
    const float middle = static_cast<float>((HalfValue(half) + HalfValue(next)) / 2);
    ASSERT_EQ(FloatToHalf(middle), even);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(FloatToHalf(-std::nextafter(middle, 1e9f)), next | 0x8000);
  }
  EXPECT_EQ(FloatToHalf(65519.9f), 0x7BFF);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7C00);
  EXPECT_EQ(FloatToHalf(1e-30f), 0);
}

TEST(Float16Test, Bfloat16RoundsToNearestAndTiesToEven) {
  for (uint32_t value = 0; value < 0x7F7F; ++value) {
    const uint32_t even = value % 2 == 0 ? value : value + 1, middle = value << 16 | 0x8000;
    ASSERT_EQ(FloatToBfloat16(Bfloat16ToFloat(static_cast<uint16_t>(value))), value);
    ASSERT_EQ(FloatToBfloat16(std::bit_cast<float>(middle)), even);
    ASSERT_EQ(FloatToBfloat16(std::bit_cast<float>(middle - 1)), value);
    ASSERT_EQ(FloatToBfloat16(std::bit_cast<float>(middle + 1)), value + 1);
  }
}

TEST(Float16Test, InfinitiesAndNansKeepTheirKind) {
  EXPECT_EQ(HalfToFloat(0x7C00), INFINITY);
  EXPECT_EQ(FloatToHalf(-INFINITY), 0xFC00);
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7C01)));
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(NAN))));
  EXPECT_EQ(FloatToBfloat16(INFINITY), 0x7F80);
  EXPECT_TRUE(std::isnan(Bfloat16ToFloat(FloatToBfloat16(std::bit_cast<float>(0x7F800001u)))));
}

}  // namespace
}  // namespace augur
