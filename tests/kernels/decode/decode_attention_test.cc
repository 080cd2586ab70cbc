#include "kernels/decode/decode_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>

#include "kernels/device.h"

namespace augur {
namespace {

template <typename T>
T Round(float x) {
  return FromFloat<T>(x);
}

struct Case {
  int heads, kv_heads, head_dim, page_size, splits;
  std::vector<int> lengths;  // 0 for a row without a sequence
  bool fp8 = false;          // keys and values in e4m3, scaled by token and head
};

// The value of an e4m3 byte.
float FromE4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                        : std::ldexp(1 + fraction / 8.0f, exponent - 7);
  return bits & 128 ? -magnitude : magnitude;
}

// Pages in random order; whatever no sequence reads is NaN.
template <typename T>
struct Problem {
  explicit Problem(const Case& c) : shape(c) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    int pages = 1;
    for (const int length : c.lengths) {
      per_sequence = std::max(per_sequence, (length + c.page_size - 1) / c.page_size);
      pages += (length + c.page_size - 1) / c.page_size;
    }
    std::vector<int32_t> order(pages);
    for (int i = 0; i < pages; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    const int64_t page = static_cast<int64_t>(c.kv_heads) * c.page_size * c.head_dim;
    const T nan = Round<T>(std::numeric_limits<float>::quiet_NaN());
    keys.assign(pages * page, nan);
    values.assign(pages * page, nan);
    table.assign(std::max<size_t>(1, c.lengths.size() * per_sequence), -1);
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      positions.push_back(c.lengths[s] - 1);
      for (int i = 0; i * c.page_size < c.lengths[s]; ++i) {
        table[s * per_sequence + i] = order.back();
        order.pop_back();
      }
      for (int t = 0; t < c.lengths[s]; ++t) {
        for (int h = 0; h < c.kv_heads; ++h) {
          for (int d = 0; d < c.head_dim; ++d) {
            keys[At(s, h, t) + d] = Round<T>(normal(random));
            values[At(s, h, t) + d] = Round<T>(normal(random));
          }
        }
      }
    }
    for (size_t i = 0; i < c.lengths.size() * c.heads * c.head_dim; ++i)
      q.push_back(Round<T>(normal(random)));
    if (c.fp8) RoundKeysAndValues();
  }

  // To e4m3 times a power of two, which T holds exactly; scales of values reach from tiny to large.
  void RoundKeysAndValues() {
    for (const auto& [plain, bytes, scales, least] : {std::tuple(&keys, &keys_fp8, &key_scale, -8),
                                                      std::tuple(&values, &values_fp8, &value_scale, -30)}) {
      bytes->assign(plain->size(), 0x7f);  // NaN
      scales->assign(plain->size() / shape.head_dim, std::numeric_limits<float>::quiet_NaN());
      for (size_t i = 0; i < plain->size(); ++i) {
        const float x = static_cast<float>((*plain)[i]);
        if (std::isnan(x)) continue;
        const size_t token = i / shape.head_dim;
        const float scale = std::ldexp(1.0f, least + static_cast<int>(token * 7 % (least == -8 ? 3 : 25)));
        uint8_t best = 0;
        for (int bits = 0; bits < 256; ++bits) {
          if ((bits & 0x7f) == 0x7f) continue;
          if (std::fabs(FromE4m3(bits) - 64 * x) < std::fabs(FromE4m3(best) - 64 * x)) best = bits;
        }
        (*scales)[token] = scale;
        (*bytes)[i] = best;
        (*plain)[i] = Round<T>(FromE4m3(best) * scale);
      }
    }
  }

  int64_t At(size_t s, int head, int t) const {
    const int64_t page = table[s * per_sequence + t / shape.page_size];
    return ((page * shape.kv_heads + head) * shape.page_size + t % shape.page_size) * shape.head_dim;
  }

  std::vector<double> Reference(size_t s, int head) const {
    const int group = shape.heads / shape.kv_heads;
    const T* query = q.data() + (s * shape.heads + head) * shape.head_dim;
    std::vector<double> weights(shape.lengths[s]), out(shape.head_dim, 0.0);
    double most = -1e300, sum = 0;
    for (int t = 0; t < shape.lengths[s]; ++t) {
      for (int d = 0; d < shape.head_dim; ++d) {
        weights[t] += static_cast<double>(static_cast<float>(query[d])) *
                      static_cast<float>(keys[At(s, head / group, t) + d]);
      }
      weights[t] /= std::sqrt(static_cast<double>(shape.head_dim));
      most = std::max(most, weights[t]);
    }
    for (double& w : weights) sum += w = std::exp(w - most);
    for (int t = 0; t < shape.lengths[s]; ++t) {
      for (int d = 0; d < shape.head_dim; ++d) {
        out[d] += weights[t] / sum * static_cast<float>(values[At(s, head / group, t) + d]);
      }
    }
    return out;
  }

  Case shape;
  int per_sequence = 0;
  std::vector<T> keys, values, q;
  std::vector<uint8_t> keys_fp8, values_fp8;
  std::vector<float> key_scale, value_scale;
  std::vector<int32_t> table, positions;
};

template <typename T>
void ExpectReference(const Case& c, double tolerance) {
  const Problem<T> problem(c);
  const auto sequences = static_cast<int64_t>(c.lengths.size());
  DeviceArray<T> keys(Device::kCuda, problem.keys), values(Device::kCuda, problem.values),
      q(Device::kCuda, problem.q);
  DeviceArray<int32_t> table(Device::kCuda, problem.table), positions(Device::kCuda, problem.positions);
  DeviceArray<T> out(Device::kCuda, std::vector<T>(problem.q.size(), Round<T>(12345)));
  DeviceArray<uint8_t> workspace(
      Device::kCuda,
      std::vector<uint8_t>(DecodeAttentionWorkspaceBytes(sequences, c.heads, c.head_dim, c.splits), 0));
  DecodeAttention<T> in{.sequences = sequences, .heads = c.heads, .kv_heads = c.kv_heads};
  in.head_dim = c.head_dim;
  in.q = q.data();
  in.q_stride = static_cast<int64_t>(c.heads) * c.head_dim;
  DeviceArray<uint8_t> keys_fp8(Device::kCuda, problem.keys_fp8),
      values_fp8(Device::kCuda, problem.values_fp8);
  DeviceArray<float> key_scale(Device::kCuda, problem.key_scale),
      value_scale(Device::kCuda, problem.value_scale);
  if (c.fp8) {
    in.keys_fp8 = keys_fp8.data();
    in.values_fp8 = values_fp8.data();
    in.key_scale = key_scale.data();
    in.value_scale = value_scale.data();
  } else {
    in.keys = keys.data();
    in.values = values.data();
  }
  in.page_size = c.page_size;
  in.page_table = table.data();
  in.table_stride = problem.per_sequence;
  in.positions = positions.data();
  in.out = out.data();
  in.splits = c.splits;
  in.workspace = workspace.data();
  for (int run = 0; run < 2; ++run) {  // twice: the first must leave the workspace as it found it
    DecodeAttentionCuda(in, nullptr);
    const std::vector<T> got = out.ToHost();
    double worst = 0, size = 0;
    for (int64_t s = 0; s < sequences; ++s) {
      for (int h = 0; h < c.heads; ++h) {
        const std::vector<double> truth = problem.Reference(s, h);
        for (int d = 0; d < c.head_dim; ++d) {
          const double x = static_cast<float>(got[(s * c.heads + h) * c.head_dim + d]);
          ASSERT_TRUE(std::isfinite(x)) << "sequence " << s << " head " << h << " dimension " << d;
          worst += (x - truth[d]) * (x - truth[d]);
          size += truth[d] * truth[d];
        }
      }
    }
    EXPECT_LT(std::sqrt(worst / size), tolerance) << "run " << run;
  }
}

const std::vector<int> kLengths = {1, 16, 17, 0, 250, 15, 64, 65, 600, 33};

TEST(DecodeAttentionCuda, EqualsPlainSoftmaxForEveryGroupSizeAndSplit) {
  for (const int head_dim : {64, 128}) {
    for (const auto& [heads, kv_heads] : {std::pair(4, 4), {9, 3}, {32, 8}, {16, 2}, {16, 1}, {7, 1}}) {
      for (const int splits : {1, 4}) {
        SCOPED_TRACE(testing::Message()
                     << heads << "/" << kv_heads << " heads of " << head_dim << ", " << splits << " splits");
        ExpectReference<BFloat16>({heads, kv_heads, head_dim, 32, splits, kLengths}, 6e-3);
      }
    }
  }
}

TEST(DecodeAttentionCuda, EqualsPlainSoftmaxForOddHeadsAndFloat32) {
  ExpectReference<BFloat16>({4, 2, 80, 16, 1, kLengths}, 6e-3);
  ExpectReference<float>({4, 2, 32, 16, 1, kLengths}, 1e-5);
  ExpectReference<float>({8, 2, 128, 32, 2, kLengths}, 1e-5);
  ExpectReference<float>({2, 1, 256, 32, 1, kLengths}, 1e-5);
}

TEST(DecodeAttentionCuda, ReadsKeysAndValuesInFp8) {
  for (const int head_dim : {64, 128}) {
    for (const auto& [heads, kv_heads] : {std::pair(4, 4), {32, 8}, {16, 1}, {7, 1}}) {
      for (const int splits : {1, 4}) {
        SCOPED_TRACE(testing::Message()
                     << heads << "/" << kv_heads << " heads of " << head_dim << ", " << splits << " splits");
        ExpectReference<BFloat16>({heads, kv_heads, head_dim, 32, splits, kLengths, true}, 4e-3);
      }
    }
  }
  ExpectReference<BFloat16>({4, 2, 80, 16, 1, kLengths, true}, 6e-3);
  ExpectReference<float>({4, 2, 32, 16, 1, kLengths, true}, 1e-5);
}

TEST(DecodeAttentionCuda, LongSequencesSplitManyTimes) {
  ExpectReference<BFloat16>({32, 8, 128, 64, 16, {5000, 3, 1025}}, 6e-3);
}

}  // namespace
}  // namespace augur
