#include "kernels/decode/packed_gemm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <random>

#include "kernels/decode/decode_rows.h"
#include "kernels/isa.h"
#include "kernels/layer/fp8.h"

namespace augur {
namespace {

std::vector<float> Random(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// All e4m3 magnitudes, from its definition.
std::vector<double> E4m3Values() {
  std::vector<double> values;
  for (int exponent = 0; exponent < 16; ++exponent) {
    for (int fraction = 0; fraction < 8; ++fraction) {
      if (exponent == 15 && fraction == 7) continue;  // NaN
      values.push_back(exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10));
    }
  }
  return values;
}

TEST(Fp8, RoundsToTheNearestValueTiesToEvenAndSaturates) {
  const std::vector<double> values = E4m3Values();
  EXPECT_EQ(values.back(), 448);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(RoundToE4m3(static_cast<float>(values[i])), values[i]);
    EXPECT_EQ(RoundToE4m3(static_cast<float>(-values[i])), -values[i]);
    if (i + 1 == values.size()) break;
    const auto middle = static_cast<float>((values[i] + values[i + 1]) / 2);
    EXPECT_EQ(RoundToE4m3(middle), i % 2 == 0 ? values[i] : values[i + 1]) << middle;
    EXPECT_EQ(RoundToE4m3(std::nextafter(middle, 0.0f)), values[i]) << middle;
    EXPECT_EQ(RoundToE4m3(std::nextafter(middle, 1e9f)), values[i + 1]) << middle;
  }
  EXPECT_EQ(RoundToE4m3(1e6f), 448);
  EXPECT_EQ(RoundToE4m3(-INFINITY), -448);
  EXPECT_TRUE(std::isnan(RoundToE4m3(NAN)));
}

TEST(Fp8, RoundsToTheNearestMultipleOfTheLeastPowerOfTwoThatHoldsTheLargest) {
  const std::vector<double> values = E4m3Values();
  for (const float largest : {448.0f, 447.9f, 448.1f, 1.0f, 3.5f, 1e-6f, 1e6f}) {
    std::vector<float> x = Random(37, 3);
    float most = 0;
    for (const float value : x) most = std::max(most, std::fabs(value));
    for (float& value : x) value *= largest / most * 0.999f;
    x[20] = -largest;
    double scale = std::exp2(std::ceil(std::log2(static_cast<double>(largest) / 448)));
    std::vector<float> rounded = x;
    RoundToScaledE4m3(static_cast<int64_t>(x.size()), rounded.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double magnitude = std::fabs(x[i]) / scale;
      double error = INFINITY;
      for (const double value : values) error = std::min(error, std::fabs(value - magnitude));
      EXPECT_EQ(std::fabs(std::fabs(rounded[i]) / scale - magnitude), error) << x[i] << " of " << largest;
      EXPECT_GE(rounded[i] * x[i], 0);
    }
  }
}

struct Case {
  GemmFormat format;
  int rows, outputs, width;
};

// The value a format keeps of x under a scale.
double Kept(GemmFormat format, float x, float scale) {
  if (format == GemmFormat::kFloat) return x;
  if (format == GemmFormat::kBFloat16) return BFloat16::From(x);
  return RoundToE4m3(x / scale);
}

float ScaleOf(const float* row, int width) {
  float largest = 0;
  for (int i = 0; i < width; ++i) largest = std::max(largest, std::fabs(row[i]));
  return E4m3Scale(largest);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const GemmFormat format : {GemmFormat::kFloat, GemmFormat::kBFloat16, GemmFormat::kFp8}) {
    for (const auto& [rows, outputs, width] : std::vector<std::tuple<int, int, int>>{
             {1, 1, 1}, {3, 17, 5}, {7, 40, 64}, {13, 33, 30}, {17, 64, 32}, {41, 24, 96}, {100, 64, 50}}) {
      cases.push_back({format, rows, outputs, width});
    }
  }
  return cases;
}

class PackedGemmTest : public IsaTest {
 protected:
  static void Load(const Case& c, const std::vector<float>& a, const std::vector<float>& w, int rows,
                   GemmRows* packed_rows, PackedWeights* packed) {
    packed_rows->Resize(rows, c.width);
    std::vector<float> row(c.width);
    for (int r = 0; r < rows; ++r) {
      std::copy_n(a.begin() + r * c.width, c.width, row.begin());
      packed_rows->SetRow(r, row.data());
    }
    for (int o = 0; o < c.outputs; ++o) {
      std::copy_n(w.begin() + o * c.width, c.width, row.begin());
      packed->SetRow(o, row.data());
    }
  }
};

TEST_P(PackedGemmTest, EqualsAFloat64ProductOfTheRoundedValues) {
  for (const Case& c : Cases()) {
    const std::vector<float> a = Random(c.rows * c.width, 1), w = Random(c.outputs * c.width, 2);
    GemmRows rows(c.format);
    PackedWeights weights(c.format, c.outputs, c.width);
    const std::vector<float> bias = Random(weights.padded_outputs(), 3);
    Load(c, a, w, c.rows, &rows, &weights);
    const int64_t stride = weights.padded_outputs() + 3;
    std::vector<float> out(c.rows * stride), rounded(c.rows * stride);
    PackedGemm(rows, weights, bias.data(), false, out.data(), stride);
    PackedGemm(rows, weights, bias.data(), true, rounded.data(), stride);
    const bool fp8 = c.format == GemmFormat::kFp8;
    for (int r = 0; r < c.rows; ++r) {
      const float a_scale = fp8 ? ScaleOf(&a[r * c.width], c.width) : 1;
      for (int o = 0; o < c.outputs; ++o) {
        const float w_scale = fp8 ? ScaleOf(&w[o * c.width], c.width) : 1;
        double sum = 0, magnitude = 0;
        for (int k = 0; k < c.width; ++k) {
          const double product =
              Kept(c.format, a[r * c.width + k], a_scale) * Kept(c.format, w[o * c.width + k], w_scale);
          sum += product;
          magnitude += std::fabs(product);
        }
        const double scale = static_cast<double>(a_scale) * w_scale;
        const double tolerance = (magnitude * scale + std::fabs(bias[o])) * 3e-6 + 1e-7;
        EXPECT_NEAR(out[r * stride + o], sum * scale + bias[o], tolerance) << r << " " << o;
        const float expected =
            c.format == GemmFormat::kFloat ? out[r * stride + o] : BFloat16::From(out[r * stride + o]);
        EXPECT_EQ(rounded[r * stride + o], expected);
      }
    }
  }
}

TEST_P(PackedGemmTest, ARowsResultDoesNotDependOnTheOthers) {
  for (const Case& c : Cases()) {
    const std::vector<float> a = Random(c.rows * c.width, 1), w = Random(c.outputs * c.width, 2);
    GemmRows rows(c.format);
    PackedWeights weights(c.format, c.outputs, c.width);
    Load(c, a, w, c.rows, &rows, &weights);
    const int64_t stride = weights.padded_outputs();
    std::vector<float> together(c.rows * stride), alone(stride);
    PackedGemm(rows, weights, nullptr, false, together.data(), stride);
    for (int r = 0; r < c.rows; ++r) {
      GemmRows one(c.format);
      one.Resize(1, c.width);
      std::vector<float> row(a.begin() + r * c.width, a.begin() + (r + 1) * c.width);
      one.SetRow(0, row.data());
      PackedGemm(one, weights, nullptr, false, alone.data(), stride);
      for (int o = 0; o < c.outputs; ++o) ASSERT_EQ(alone[o], together[r * stride + o]) << r << " " << o;
    }
  }
}

TEST_P(PackedGemmTest, TheResultDoesNotDependOnTheNumberOfThreads) {
  const int before = omp_get_max_threads();
  for (const GemmFormat format : {GemmFormat::kFloat, GemmFormat::kBFloat16, GemmFormat::kFp8}) {
    for (const int count : {31, 32, 50, 500}) {
      const Case c{format, count, 576, 300};  // 18 tiles of 32: more parts of the rows share them out evenly
      const std::vector<float> a = Random(c.rows * c.width, 1), w = Random(c.outputs * c.width, 2);
      GemmRows rows(format);
      PackedWeights weights(format, c.outputs, c.width);
      Load(c, a, w, c.rows, &rows, &weights);
      const int64_t stride = weights.padded_outputs();
      std::vector<float> expected(c.rows * stride), actual(c.rows * stride);
      omp_set_num_threads(1);
      PackedGemm(rows, weights, nullptr, true, expected.data(), stride);
      for (const int threads : {3, 16}) {
        std::fill(actual.begin(), actual.end(), NAN);
        omp_set_num_threads(threads);
        PackedGemm(rows, weights, nullptr, true, actual.data(), stride);
        ASSERT_EQ(actual, expected) << threads << " threads, " << count << " rows";
      }
    }
  }
  omp_set_num_threads(before);
}

TEST_P(PackedGemmTest, GivesBackTheRoundedWeights) {
  for (const Case& c : Cases()) {
    const std::vector<float> a = Random(c.width, 1), w = Random(c.outputs * c.width, 2);
    GemmRows rows(c.format);
    PackedWeights weights(c.format, c.outputs, c.width);
    Load(c, a, w, 1, &rows, &weights);
    std::vector<float> row(c.width);
    for (int o = 0; o < c.outputs; ++o) {
      weights.GetRow(o, row.data());
      const float scale = c.format == GemmFormat::kFp8 ? ScaleOf(&w[o * c.width], c.width) : 1;
      for (int k = 0; k < c.width; ++k) {
        ASSERT_EQ(row[k], static_cast<float>(Kept(c.format, w[o * c.width + k], scale)) * scale);
      }
    }
  }
}

TEST_P(PackedGemmTest, ANanStaysInItsRow) {
  for (const GemmFormat format : {GemmFormat::kFloat, GemmFormat::kBFloat16, GemmFormat::kFp8}) {
    GemmRows rows(format);
    PackedWeights weights(format, 8, 12);
    rows.Resize(3, 12);
    for (int r = 0; r < 3; ++r) {
      std::vector<float> row = Random(12, r);
      if (r == 1) row[5] = NAN;
      rows.SetRow(r, row.data());
    }
    for (int o = 0; o < 8; ++o) weights.SetRow(o, Random(12, 10 + o).data());
    const int64_t stride = weights.padded_outputs();
    std::vector<float> out(3 * stride);
    PackedGemm(rows, weights, nullptr, true, out.data(), stride);
    for (int o = 0; o < 8; ++o) {
      EXPECT_TRUE(std::isfinite(out[o]));
      EXPECT_TRUE(std::isnan(out[stride + o]));
      EXPECT_TRUE(std::isfinite(out[2 * stride + o]));
    }
  }
}

TEST_P(PackedGemmTest, SwigluWithinTheProductEqualsItAfterwards) {
  const GemmFormat format = GemmFormat::kBFloat16;
  for (const auto& [count, inner, width] :
       std::vector<std::tuple<int, int, int>>{{1, 12, 8}, {5, 30, 10}, {19, 24, 64}, {301, 52, 440}}) {
    PackedWeights fused = PackedWeights::ForSwiglu(format, inner, width);
    ASSERT_TRUE(fused.fuses_swiglu());
    PackedWeights plain(format, 2 * inner, width), down(format, 9, inner);
    const std::vector<float> bias = Random(2 * inner, 1);
    std::vector<float> plain_bias(plain.padded_outputs()), fused_bias(fused.padded_outputs());
    for (int o = 0; o < 2 * inner; ++o) {
      plain.SetRow(o, Random(width, 10 + o).data());
      fused.SetRow(o, Random(width, 10 + o).data());
      plain_bias[o] = fused_bias[fused.Column(o)] = bias[o];
    }
    for (int o = 0; o < 9; ++o) down.SetRow(o, Random(inner, 5000 + o).data());
    GemmRows rows(format), afterwards(format), within(format);
    rows.Resize(count, width);
    for (int r = 0; r < count; ++r) rows.SetRow(r, Random(width, 9000 + r).data());
    const int64_t stride = plain.padded_outputs(), out_stride = down.padded_outputs();
    std::vector<float> wide(count * stride), expected(count * out_stride), actual(count * out_stride);
    PackedGemm(rows, plain, plain_bias.data(), true, wide.data(), stride);
    afterwards.Resize(count, inner);
    for (int r = 0; r < count; ++r) {
      float* row = wide.data() + r * stride;
      SwigluRowCpu<BFloat16>(inner, row, row);
      afterwards.SetRow(r, row);
    }
    PackedGemmSwiglu(rows, fused, fused_bias.data(), &within);
    PackedGemm(afterwards, down, nullptr, false, expected.data(), out_stride);
    PackedGemm(within, down, nullptr, false, actual.data(), out_stride);
    for (int r = 0; r < count; ++r) {
      for (int o = 0; o < 9; ++o) ASSERT_EQ(actual[r * out_stride + o], expected[r * out_stride + o]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EachIsa, PackedGemmTest, testing::ValuesIn(kIsas), NameOfIsa);

}  // namespace
}  // namespace augur
