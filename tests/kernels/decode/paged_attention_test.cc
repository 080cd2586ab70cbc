#include "kernels/decode/paged_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/isa.h"

namespace augur {
namespace {

class PagedAttention : public IsaTest {};

template <typename T>
void ExpectAFloat64Softmax() {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (const auto& [heads, kv_heads, head_dim] : std::vector<std::tuple<int, int, int>>{
           {9, 3, 64}, {4, 2, 32}, {6, 6, 10}, {10, 2, 6}, {7, 1, 20}, {8, 2, 80}, {2, 1, 128}}) {
    const PagedShape shape{heads, kv_heads, head_dim};
    const int64_t pages = 12;
    // What lies beyond a sequence's length is NaN, and must not be looked at.
    const T nan = FromFloat<T>(std::numeric_limits<float>::quiet_NaN());
    std::vector<T> keys(pages * shape.key_elements(), nan), values(pages * shape.value_elements(), nan);
    const KvPages<T> kv{keys.data(), values.data()};
    const std::vector<std::vector<int32_t>> tables = {{3, 7, 1}, {0}, {5, 2}, {11, 4, 6, 8}};
    const std::vector<int> lengths = {40, 1, 32, 49};
    std::vector<PagedToken> tokens;
    std::vector<std::vector<float>> k, v;
    for (size_t s = 0; s < tables.size(); ++s) {
      k.emplace_back();
      v.emplace_back();
      for (int t = 0; t < lengths[s]; ++t) {
        std::vector<float> key(kv_heads * head_dim), value(kv_heads * head_dim);
        for (float& x : key) x = FromFloat<T>(normal(random));
        for (float& x : value) x = FromFloat<T>(normal(random));
        WriteKvCpu(shape, kv, {tables[s].data(), t}, key.data(), value.data());
        k[s].insert(k[s].end(), key.begin(), key.end());
        v[s].insert(v[s].end(), value.begin(), value.end());
      }
      tokens.push_back({tables[s].data(), lengths[s] - 1});
    }
    const int width = heads * head_dim;
    std::vector<float> q(tokens.size() * width), out(q.size());
    for (float& x : q) x = FromFloat<T>(normal(random));
    PagedAttentionCpu(shape, kv, tokens.data(), static_cast<int64_t>(tokens.size()), q.data(),
                      shape.heads * shape.head_dim, out.data());
    for (size_t s = 0; s < tokens.size(); ++s) {
      for (int h = 0; h < heads; ++h) {
        const int part = h / (heads / kv_heads) * head_dim;
        std::vector<double> weight(lengths[s]);
        double total = 0;
        for (int t = 0; t < lengths[s]; ++t) {
          double score = 0;
          for (int d = 0; d < head_dim; ++d) {
            score += double{q[s * width + h * head_dim + d]} * k[s][t * kv_heads * head_dim + part + d];
          }
          total += weight[t] = std::exp(score / std::sqrt(head_dim));
        }
        for (int d = 0; d < head_dim; ++d) {
          double expected = 0;
          for (int t = 0; t < lengths[s]; ++t) {
            expected += weight[t] / total * v[s][t * kv_heads * head_dim + part + d];
          }
          ASSERT_NEAR(out[s * width + h * head_dim + d], expected, 1e-5);
        }
      }
    }
  }
}

TEST_P(PagedAttention, EqualsAFloat64SoftmaxOverRealLengths) {
  ExpectAFloat64Softmax<float>();
  ExpectAFloat64Softmax<BFloat16>();
}
INSTANTIATE_TEST_SUITE_P(EachIsa, PagedAttention, testing::ValuesIn(kIsas), NameOfIsa);

}  // namespace
}  // namespace augur
