// What the CUDA kernels of norms, SwiGLU and rotation do in addition to their CPU versions: gathering,
// residuals, FP8, pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/device.h"
#include "kernels/layer/rms_norm.h"
#include "kernels/layer/rotary.h"
#include "kernels/layer/swiglu.h"

namespace augur {
namespace {

std::vector<BFloat16> Random(size_t size, int seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<BFloat16> out;
  for (size_t i = 0; i < size; ++i) out.push_back(BFloat16::From(scale * normal(random)));
  return out;
}

// The value of an e4m3 byte.
double FromE4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(1 + fraction / 8.0, exponent - 7);
  return bits & 128 ? -magnitude : magnitude;
}

// Every byte is the e4m3 value nearest to value / scale, and scale is the largest magnitude / 448.
void ExpectQuantised(const std::vector<BFloat16>& values, int64_t width, const std::vector<uint8_t>& bytes,
                     const std::vector<float>& scales) {
  for (size_t row = 0; row < scales.size(); ++row) {
    float largest = 0;
    for (int64_t i = 0; i < width; ++i) {
      largest = std::max(largest, std::fabs(static_cast<float>(values[row * width + i])));
    }
    ASSERT_NEAR(scales[row], largest / 448, 1e-6 * largest) << "row " << row;
    for (int64_t i = 0; i < width; ++i) {
      const double wanted = static_cast<float>(values[row * width + i]) / scales[row];
      const double step = std::max(std::ldexp(1.0, -9), std::ldexp(1.0, std::ilogb(wanted) - 3));
      ASSERT_NEAR(FromE4m3(bytes[row * width + i]), wanted, 0.5001 * step)
          << "row " << row << " column " << i;
    }
  }
}

class FusedNormCuda : public testing::TestWithParam<int64_t> {};

TEST_P(FusedNormCuda, GathersAddsNormsAndQuantisesInOnePass) {
  constexpr int64_t kRows = 13;
  const int64_t width = GetParam();
  const std::vector<int32_t> gather = {4, 0, 9, 9, 1, 2, 3, 5, 6, 7, 8, 0, 4};
  const auto table = Random(10 * width, 1), delta = Random(kRows * width, 2), weight = Random(width, 3);
  DeviceArray<BFloat16> x(Device::kCuda, table), d(Device::kCuda, delta), w(Device::kCuda, weight);
  DeviceArray<int32_t> g(Device::kCuda, gather);
  DeviceArray<BFloat16> sum(Device::kCuda, Random(kRows * width, 4)),
      y(Device::kCuda, Random(kRows * width, 5));
  DeviceArray<uint8_t> quantised(Device::kCuda, std::vector<uint8_t>(kRows * width, 0x7f));
  DeviceArray<float> scale(Device::kCuda, std::vector<float>(kRows, -1));
  RmsNormRows<BFloat16> rows{.rows = kRows, .width = width, .x = x.data(), .gather = g.data()};
  rows.delta = d.data();
  rows.weight = w.data();
  rows.eps = 1e-6f;
  rows.sum = sum.data();
  rows.y = y.data();
  rows.quantised = quantised.data();
  rows.scale = scale.data();
  RmsNormForwardCuda(rows, nullptr);

  std::vector<BFloat16> expected_sum, expected_y(kRows * width);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      expected_sum.push_back(BFloat16::From(static_cast<float>(table[gather[r] * width + i]) +
                                            static_cast<float>(delta[r * width + i])));
    }
  }
  std::vector<float> inverse(kRows);
  RmsNormForwardCpu(kRows, width, expected_sum.data(), weight.data(), 1e-6f, expected_y.data(),
                    inverse.data());
  const auto got_sum = sum.ToHost(), got_y = y.ToHost();
  for (int64_t i = 0; i < kRows * width; ++i) {
    ASSERT_EQ(got_sum[i].bits, expected_sum[i].bits) << i;
    const float wanted = expected_y[i];
    ASSERT_NEAR(static_cast<float>(got_y[i]), wanted, 0.016 * std::fabs(wanted)) << i;
  }
  ExpectQuantised(got_y, width, quantised.ToHost(), scale.ToHost());
}

// The scales of an FP8 product, multiplied in where it is read, give what the scaled product gives.
TEST(ProductScaleCuda, IsMultipliedInByNormAndSwiglu) {
  constexpr int64_t kRows = 3;
  for (const int64_t width : {64, 37}) {
    std::vector<float> row = {0.5f, 2.0f, 0.25f}, column;
    for (int64_t i = 0; i < 2 * width; ++i) column.push_back(std::ldexp(1.0f, static_cast<int>(i % 5) - 2));
    const auto raw = Random(kRows * 2 * width, 21), x = Random(kRows * width, 22), weight = Random(width, 23);
    std::vector<BFloat16> scaled, narrow, narrow_scaled;  // powers of two: nothing is rounded
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < 2 * width; ++i) {
        const float value = raw[r * 2 * width + i];
        scaled.push_back(BFloat16::From(value * row[r] * column[i]));
        if (i >= width) continue;
        narrow.push_back(raw[r * 2 * width + i]);
        narrow_scaled.push_back(scaled.back());
      }
    }
    DeviceArray<float> rows(Device::kCuda, row), columns(Device::kCuda, column);
    const auto swiglu = [&](const std::vector<BFloat16>& from, const ProductScale& scale) {
      DeviceArray<BFloat16> in(Device::kCuda, from), out(Device::kCuda, Random(kRows * width, 24));
      SwigluForwardCuda<BFloat16>(kRows, width, in.data(), scale, out.data(), nullptr, nullptr, nullptr);
      return out.ToHost();
    };
    const auto norm = [&](const std::vector<BFloat16>& delta, const ProductScale& scale) {
      DeviceArray<BFloat16> in(Device::kCuda, x), d(Device::kCuda, delta), w(Device::kCuda, weight),
          out(Device::kCuda, Random(kRows * width, 25));
      DeviceArray<float> product(Device::kCuda, std::vector<float>(delta.begin(), delta.end()));
      RmsNormRows<BFloat16> all{.rows = kRows, .width = width, .x = in.data()};
      if (scale.row == nullptr) {
        all.delta = d.data();
      } else {
        all.product = product.data();
        all.product_scale = scale;
      }
      all.weight = w.data();
      all.eps = 1e-6f;
      all.y = out.data();
      RmsNormForwardCuda(all, nullptr);
      return out.ToHost();
    };
    const ProductScale scale{rows.data(), columns.data()};
    const auto expect_equal = [](const std::vector<BFloat16>& a, const std::vector<BFloat16>& b) {
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i].bits, b[i].bits) << i;
    };
    expect_equal(swiglu(raw, scale), swiglu(scaled, {}));
    expect_equal(norm(narrow, scale), norm(narrow_scaled, {}));
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, FusedNormCuda, testing::Values(576, 2560, 16384, 77));

TEST(FusedSwigluCuda, QuantisesItsOutput) {
  for (const int64_t width : {1536, 9728, 33}) {
    constexpr int64_t kRows = 5;
    const auto gate_up = Random(kRows * 2 * width, 6, 3);
    DeviceArray<BFloat16> in(Device::kCuda, gate_up), out(Device::kCuda, Random(kRows * width, 7));
    DeviceArray<uint8_t> quantised(Device::kCuda, std::vector<uint8_t>(kRows * width, 0x7f));
    DeviceArray<float> scale(Device::kCuda, std::vector<float>(kRows, -1));
    SwigluForwardCuda<BFloat16>(kRows, width, in.data(), {}, out.data(), quantised.data(), scale.data(),
                                nullptr);
    std::vector<BFloat16> expected(kRows * width);
    SwigluForwardCpu(kRows, width, gate_up.data(), expected.data());
    const auto got = out.ToHost();
    for (int64_t i = 0; i < kRows * width; ++i) {
      const float wanted = expected[i];
      ASSERT_NEAR(static_cast<float>(got[i]), wanted, 0.016 * std::fabs(wanted)) << i;
    }
    ExpectQuantised(got, width, quantised.ToHost(), scale.ToHost());
  }
}

template <typename T>
void ExpectRotatedIntoPages(int heads, int kv_heads, int head_dim, bool norms) {
  constexpr int kPage = 16, kTableStride = 4;
  const std::vector<int32_t> positions = {0, 17, 40, 3, 63}, sequence = {0, 1, 1, 2, 0};
  const std::vector<int32_t> page_table = {5, 1, 2, 3, 4, 0, 6, 7, -1, -1, -1, -1};
  const int64_t tokens = 5, row = (heads + 2 * kv_heads) * head_dim, pages = 8;
  const auto convert = [](const std::vector<BFloat16>& from) {
    std::vector<T> to;
    for (const BFloat16 x : from) to.push_back(FromFloat<T>(static_cast<float>(x)));
    return to;
  };
  const std::vector<T> qkv = convert(Random(tokens * row, 8)), q_norm = convert(Random(head_dim, 9)),
                       k_norm = convert(Random(head_dim, 10));
  std::vector<float> cos, sin;
  for (int p = 0; p < 64; ++p) {
    for (int i = 0; i < head_dim / 2; ++i) {
      cos.push_back(std::cos(p * std::pow(0.9f, i)));
      sin.push_back(std::sin(p * std::pow(0.9f, i)));
    }
  }
  RotaryInput<T> in{tokens,
                    heads,
                    kv_heads,
                    head_dim,
                    qkv.data(),
                    norms ? q_norm.data() : nullptr,
                    norms ? k_norm.data() : nullptr,
                    1e-6f,
                    positions.data(),
                    cos.data(),
                    sin.data()};
  std::vector<T> expected(tokens * (heads + kv_heads) * head_dim);
  RotaryForwardCpu(in, expected.data());

  DeviceArray<T> qkv_there(Device::kCuda, qkv), q_there(Device::kCuda, q_norm),
      k_there(Device::kCuda, k_norm);
  DeviceArray<int32_t> positions_there(Device::kCuda, positions), sequence_there(Device::kCuda, sequence),
      table_there(Device::kCuda, page_table);
  DeviceArray<float> cos_there(Device::kCuda, cos), sin_there(Device::kCuda, sin);
  const std::vector<T> unwritten(pages * kv_heads * kPage * head_dim, FromFloat<T>(99));
  DeviceArray<T> rotated(Device::kCuda, expected), keys(Device::kCuda, unwritten),
      values(Device::kCuda, unwritten);
  in.qkv = qkv_there.data();
  in.q_norm = norms ? q_there.data() : nullptr;
  in.k_norm = norms ? k_there.data() : nullptr;
  in.positions = positions_there.data();
  in.cos = cos_there.data();
  in.sin = sin_there.data();
  const PagedKv<T> to{keys.data(),        values.data(), kPage,
                      table_there.data(), kTableStride,  sequence_there.data()};
  RotaryForwardCuda(in, rotated.data(), &to, nullptr);
  const std::vector<T> got = rotated.ToHost(), got_keys = keys.ToHost(), got_values = values.ToHost();
  size_t written = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t page = page_table[sequence[t] * kTableStride + positions[t] / kPage];
    for (int h = 0; h < heads + 2 * kv_heads; ++h) {
      for (int d = 0; d < head_dim; ++d) {
        const int kv = h < heads + kv_heads ? h - heads : h - heads - kv_heads;
        const int64_t at = ((page * kv_heads + kv) * kPage + positions[t] % kPage) * head_dim + d;
        if (h < heads + kv_heads) {
          const int64_t i = (t * (heads + kv_heads) + h) * head_dim + d;
          const float wanted = expected[i];
          ASSERT_NEAR(static_cast<float>(got[i]), wanted, 0.01 * std::fabs(wanted) + 1e-2) << t << " " << h;
          if (h >= heads && page >= 0) {
            ASSERT_EQ(static_cast<float>(got_keys[at]), static_cast<float>(got[i]));
          }
        } else if (page >= 0) {
          ASSERT_EQ(static_cast<float>(got_values[at]), static_cast<float>(qkv[t * row + h * head_dim + d]));
          ++written;
        }
      }
    }
  }
  size_t untouched = 0;
  for (const T& x : got_values) untouched += static_cast<float>(x) == 99;
  EXPECT_EQ(untouched, unwritten.size() - written);
}

TEST(RotaryCuda, WritesKeysAndValuesIntoPages) {
  for (const bool norms : {false, true}) {
    for (const int head_dim : {64, 128, 80, 256}) {
      SCOPED_TRACE(head_dim);
      ExpectRotatedIntoPages<BFloat16>(6, 2, head_dim, norms);
      ExpectRotatedIntoPages<BFloat16>(8, 4, head_dim, norms);
      ExpectRotatedIntoPages<float>(6, 2, head_dim, norms);
    }
  }
}

// What rotation writes: rows, and keys and values in pages as bytes, with their scales in FP8.
struct Rotated {
  std::vector<BFloat16> rows;
  std::vector<uint8_t> keys, values;
  std::vector<float> key_scale, value_scale;
};

// Four tokens of a sequence with 8 + 2 * 4 heads of 128, from an FP8 product or not. Rows that are not
// aligned to 16 bytes take the kernel for any heads.
Rotated RotateFourTokens(bool norms, bool product, bool fp8, bool aligned) {
  constexpr int64_t kTokens = 4, kRow = 16 * 128, kOut = 12 * 128, kPaged = 4 * 16 * 128;
  const std::vector<BFloat16> qkv = Random(kTokens * kRow, 11);
  std::vector<float> floats, row_scale = {0.5f, 3.0f, 1e-3f, 70.0f}, column_scale, angles;
  for (const BFloat16 x : qkv) floats.push_back(1.7f * static_cast<float>(x));
  for (const BFloat16 x : Random(kRow, 12)) column_scale.push_back(static_cast<float>(x));
  for (const BFloat16 x : Random(16 * 64, 13)) angles.push_back(static_cast<float>(x));
  DeviceArray<BFloat16> in_rows(Device::kCuda, qkv), q_norm(Device::kCuda, Random(128, 14)),
      k_norm(Device::kCuda, Random(128, 15));
  DeviceArray<float> in_product(Device::kCuda, floats), by_row(Device::kCuda, row_scale),
      by_column(Device::kCuda, column_scale), angle(Device::kCuda, angles);
  DeviceArray<int32_t> positions(Device::kCuda, std::vector<int32_t>{3, 4, 5, 6}),
      owners(Device::kCuda, std::vector<int32_t>(kTokens, 0)), table(Device::kCuda, std::vector<int32_t>{0});
  DeviceArray<BFloat16> rows(Device::kCuda,
                             std::vector<BFloat16>(kTokens * kOut + 8, FromFloat<BFloat16>(0)));
  DeviceArray<uint8_t> keys(Device::kCuda, std::vector<uint8_t>(2 * kPaged, 0)),
      values(Device::kCuda, std::vector<uint8_t>(2 * kPaged, 0));
  DeviceArray<float> key_scale(Device::kCuda, std::vector<float>(4 * 16, 0)),
      value_scale(Device::kCuda, std::vector<float>(4 * 16, 0));
  RotaryInput<BFloat16> in{kTokens,
                           8,
                           4,
                           128,
                           in_rows.data(),
                           norms ? q_norm.data() : nullptr,
                           norms ? k_norm.data() : nullptr,
                           1e-6f,
                           positions.data(),
                           angle.data(),
                           angle.data()};
  if (product) {
    in.scale = {by_row.data(), by_column.data()};
    in.product = in_product.data();
  }
  PagedKv<BFloat16> to{
      .page_size = 16, .page_table = table.data(), .table_stride = 1, .sequence = owners.data()};
  if (fp8) {
    to.keys_fp8 = keys.data();
    to.values_fp8 = values.data();
    to.key_scale = key_scale.data();
    to.value_scale = value_scale.data();
  } else {
    to.keys = reinterpret_cast<BFloat16*>(keys.data());
    to.values = reinterpret_cast<BFloat16*>(values.data());
  }
  BFloat16* out = rows.data() + (aligned ? 0 : 2);
  RotaryForwardCuda(in, out, &to, nullptr);
  std::vector<BFloat16> got = rows.ToHost();
  got.erase(got.begin(), got.begin() + (out - rows.data()));
  got.resize(kTokens * kOut);
  return {got, keys.ToHost(), values.ToHost(), key_scale.ToHost(), value_scale.ToHost()};
}

TEST(RotaryCuda, BothKernelsHaveTheSameBits) {
  for (const bool norms : {false, true}) {
    for (const bool product : {false, true}) {
      for (const bool fp8 : {false, true}) {
        SCOPED_TRACE(testing::Message() << "norms " << norms << " product " << product << " fp8 " << fp8);
        const Rotated four = RotateFourTokens(norms, product, fp8, true);
        const Rotated any = RotateFourTokens(norms, product, fp8, false);
        ASSERT_EQ(four.rows.size(), any.rows.size());
        EXPECT_EQ(std::memcmp(four.rows.data(), any.rows.data(), four.rows.size() * sizeof(BFloat16)), 0);
        EXPECT_EQ(four.keys, any.keys);
        EXPECT_EQ(four.values, any.values);
        EXPECT_EQ(four.key_scale, any.key_scale);
        EXPECT_EQ(four.value_scale, any.value_scale);
        EXPECT_GT(std::ranges::count_if(four.keys, [](uint8_t x) { return x != 0; }), 4 * 4 * 100);
      }
    }
  }
}

}  // namespace
}  // namespace augur
