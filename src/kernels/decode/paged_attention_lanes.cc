#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/decode/attention_kernels.h"
#include "kernels/simd/multiply_add.h"
#include "kernels/simd/rounded_lanes.h"

namespace augur {
inline namespace AUGUR_LANES {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Vectors of tokens whose scores are summed at once: one page, or two, so that enough sums are under way.
constexpr int kScores = std::max(2, kPageTokens / kFloats);
constexpr int kPages = kScores * kFloats / kPageTokens;
// Vectors of channels whose values are summed at once.
constexpr int kChannels = kFloats == 8 ? 2 : 4;

// Vector `v` of two neighbouring rows of `row` elements each at `from`: channels of keys, tokens of values.
inline AUGUR_INLINE void LoadTwo(const BFloat16* from, int /*row*/, int v, Floats* first, Floats* second) {
  const Pairs pairs = *(reinterpret_cast<const Pairs*>(from) + v);
  *first = FirstOf(pairs);
  *second = SecondOf(pairs);
}

inline AUGUR_INLINE void LoadTwo(const float* from, int row, int v, Floats* first, Floats* second) {
  *first = LoadFloats(from + v * kFloats);
  *second = LoadFloats(from + row + v * kFloats);
}

// Where a head's part of a page is.
template <typename T>
struct HeadPages {
  HeadPages(const PagedShape& shape, const KvPages<T>& kv, const PagedPlace& place)
      : table(place.token.pages),
        keys(kv.keys + place.kv_head * (shape.key_elements() / shape.kv_heads)),
        values(kv.values + place.kv_head * (shape.value_elements() / shape.kv_heads)),
        key_page(shape.key_elements()),
        value_page(shape.value_elements()) {}
  const T* KeysOf(int64_t page) const { return keys + table[page] * key_page; }
  const T* ValuesOf(int64_t page) const { return values + table[page] * value_page; }

  const int32_t* table;
  const T *keys, *values;
  int64_t key_page, value_page;
};

// Pages to fetch while others are worked on.
template <typename T>
using Ahead = std::array<const T*, kPages>;

// Scores of kPages pages: q is [kHeads][head_dim], scaled already. Meanwhile `next` is fetched.
template <int kHeads, typename T>
inline void ScorePages(const T* const (&keys)[kPages], const Ahead<T>& next, const float* q, int head_dim,
                       float* scores, int64_t stride) {
  constexpr int kEach = kScores / kPages;  // vectors of a page
  Floats sum[kHeads][kScores] = {};
  for (int d = 0; d < head_dim; d += 2) {
    Unroll<kPages>([&](auto p) AUGUR_INLINE {
      __builtin_prefetch(next[p] + d * kPageTokens);
      if constexpr (sizeof(T) == 4) __builtin_prefetch(next[p] + (d + 1) * kPageTokens);
    });
    Floats first[kScores], second[kScores];
    Unroll<kScores>([&](auto v) AUGUR_INLINE {
      LoadTwo(keys[v / kEach] + d * kPageTokens, kPageTokens, v % kEach, &first[v], &second[v]);
    });
    Unroll<kHeads>([&](auto h) AUGUR_INLINE {
      const Floats one = Broadcast(q + h * head_dim + d), other = Broadcast(q + h * head_dim + d + 1);
      Unroll<kScores>([&](auto v) AUGUR_INLINE { sum[h][v] = MultiplyAdd(sum[h][v], one, first[v]); });
      Unroll<kScores>([&](auto v) AUGUR_INLINE { sum[h][v] = MultiplyAdd(sum[h][v], other, second[v]); });
    });
  }
  Unroll<kHeads>([&](auto h) AUGUR_INLINE {
    Unroll<kScores>([&](auto v) AUGUR_INLINE { StoreFloats(sum[h][v], scores + h * stride + v * kFloats); });
  });
}

// Turns scores into exp(score - largest), zero beyond `length`; returns their sum.
inline float SoftmaxRow(float* scores, int64_t length, int64_t padded) {
  std::fill(scores + length, scores + padded, -kInfinity);
  Floats most = Floats{} - kInfinity;
  for (int64_t i = 0; i < padded; i += kFloats) {
    const Floats x = LoadFloats(scores + i);
    most = x > most ? x : most;
  }
  const float largest = LargestOf(most);
  Floats sum{};
  for (int64_t i = 0; i < padded; i += kFloats) {
    const Floats x = LoadFloats(scores + i) - largest;
    const Floats weight = x < -87.0f ? Floats{} : VectorExp(x);
    sum += weight;
    StoreFloats(weight, scores + i);
  }
  return SumOf(sum);
}

// Adds two tokens' values of kVectors times kFloats channels, weighted; the first's alone unless kBoth. What
// stands in the place of a token that is not there may be anything, and anything times zero may be NaN.
template <bool kBoth, int kHeads, int kVectors, typename T>
inline AUGUR_INLINE void AddTokens(const T* values, int padded, const float* weights, int64_t stride,
                                   Floats (&sum)[kHeads][kVectors]) {
  Unroll<kVectors>([&](auto v) AUGUR_INLINE {
    Floats first, second;
    LoadTwo(values, kBoth ? padded : 0, v, &first, &second);
    Unroll<kHeads>([&](auto h) AUGUR_INLINE {
      sum[h][v] = MultiplyAdd(sum[h][v], Broadcast(weights + h * stride), first);
      if constexpr (kBoth) sum[h][v] = MultiplyAdd(sum[h][v], Broadcast(weights + h * stride + 1), second);
    });
  });
}

// out [kHeads][head_dim] from channel `d` on, kVectors of them: all tokens' values, weighted and scaled.
// Meanwhile the page after each is fetched, and during the last one `after`.
template <int kHeads, int kVectors, typename T>
inline void SumValues(const HeadPages<T>& pages, const Ahead<T>& after, int64_t length, int padded, int d,
                      const float* weights, int64_t stride, const float (&scales)[kHeads], int head_dim,
                      float* out) {
  constexpr int kTogether = sizeof(T) == 2 ? 2 : 1, kLine = 64 / sizeof(T);
  Floats sum[kHeads][kVectors] = {};
  for (int64_t begin = 0; begin < length; begin += kPageTokens, weights += kPageTokens) {
    const int64_t page = begin / kPageTokens;
    const bool last = begin + kPageTokens >= length;
    const T *values = pages.ValuesOf(page) + d * kTogether,
            *next = last ? after[0] : pages.ValuesOf(page + 1);
    const int count = static_cast<int>(std::min<int64_t>(kPageTokens, length - begin));
    int t = 0;
    for (; t + 2 <= count; t += 2) {
      for (int i = d * kTogether; i < (d + kVectors * kFloats) * kTogether; i += kLine) {
        __builtin_prefetch(next + t * padded + i);
        if (kPages > 1 && last) __builtin_prefetch(after[kPages - 1] + t * padded + i);
      }
      AddTokens<true>(values + t * padded, padded, weights + t, stride, sum);
    }
    if (t < count) AddTokens<false>(values + t * padded, padded, weights + t, stride, sum);
  }
  Unroll<kHeads>([&](auto h) AUGUR_INLINE {
    Unroll<kVectors>([&](auto v) AUGUR_INLINE {
      const Floats x = sum[h][v] * scales[h];
      const int from = d + v * kFloats, left = std::min(kFloats, head_dim - from);
      float* to = out + h * head_dim + from;
      if (left == kFloats) {
        StoreFloats(x, to);
      } else {
        for (int i = 0; i < left; ++i) to[i] = x[i];
      }
    });
  });
}

template <int kHeads, typename T>
void AttendHeads(const PagedShape& shape, const HeadPages<T>& pages, const Ahead<T>& after, int64_t length,
                 const float* q, float* out, float* scores) {
  const int64_t last = (length - 1) / kPageTokens, stride = (last / kPages + 1) * kPages * kPageTokens;
  for (int64_t p = 0; p <= last; p += kPages) {
    const T* keys[kPages];
    for (int i = 0; i < kPages; ++i) keys[i] = pages.KeysOf(std::min(p + i, last));
    Ahead<T> next;
    for (int i = 0; i < kPages; ++i) {
      const int64_t ahead = p + kPages + i;
      next[i] = p + kPages <= last ? pages.KeysOf(std::min(ahead, last))
                                   : pages.ValuesOf(std::min<int64_t>(i, last));
    }
    ScorePages<kHeads, T>(keys, next, q, shape.head_dim, scores + p * kPageTokens, stride);
  }
  float scales[kHeads];
  for (int h = 0; h < kHeads; ++h) scales[h] = 1.0f / SoftmaxRow(scores + h * stride, length, stride);
  const int padded = PaddedHeadDim(shape.head_dim);
  int d = 0;
  for (; d + kChannels * kFloats <= padded; d += kChannels * kFloats) {
    SumValues<kHeads, kChannels>(pages, after, length, padded, d, scores, stride, scales, shape.head_dim,
                                 out);
  }
  for (; d < shape.head_dim; d += kFloats) {
    SumValues<kHeads, 1>(pages, after, length, padded, d, scores, stride, scales, shape.head_dim, out);
  }
}

template <typename T>
void Attend(const PagedShape& shape, const KvPages<T>& kv, const PagedPlace& here, const PagedPlace& next,
            const float* q, float* out, float* scratch) {
  const HeadPages<T> pages(shape, kv, here), later(shape, kv, next);
  Ahead<T> after;
  for (int i = 0; i < kPages; ++i) {
    after[i] = later.KeysOf(std::min(i, next.token.position / kPageTokens));
  }
  const int group = shape.heads / shape.kv_heads;
  const int64_t length = here.token.position + 1;
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  for (int h = 0; h < group; h += kMostAttendingHeads) {
    const int heads = std::min(kMostAttendingHeads, group - h), first = h * shape.head_dim;
    for (int i = 0; i < heads * shape.head_dim; ++i) scratch[i] = q[first + i] * scale;
    float* scores = scratch + kMostAttendingHeads * shape.head_dim;
    Unroll<kMostAttendingHeads>([&](auto i) {
      if (heads == i + 1) AttendHeads<i + 1, T>(shape, pages, after, length, scratch, out + first, scores);
    });
  }
}

template <typename T>
void Write(const PagedShape& shape, const KvPages<T>& kv, const PagedToken& token, const float* keys,
           const float* values) {
  constexpr int kTogether = sizeof(T) == 2 ? 2 : 1;
  const int64_t page = token.pages[token.position / kPageTokens];
  const int slot = token.position % kPageTokens, padded = PaddedHeadDim(shape.head_dim);
  T* key = kv.keys + page * shape.key_elements() + slot * kTogether;
  T* value =
      kv.values + page * shape.value_elements() + slot / kTogether * kTogether * padded + slot % kTogether;
  for (int h = 0; h < shape.kv_heads; ++h, keys += shape.head_dim, values += shape.head_dim) {
    for (int d = 0; d < shape.head_dim; ++d) {
      key[d / kTogether * kTogether * kPageTokens + d % kTogether] = FromFloat<T>(keys[d]);
      value[d * kTogether] = FromFloat<T>(values[d]);
    }
    for (int d = shape.head_dim; d < padded; ++d) value[d * kTogether] = FromFloat<T>(0.0f);
    key += shape.head_dim * kPageTokens;
    value += padded * kPageTokens;
  }
}

}  // namespace
}  // namespace AUGUR_LANES

extern const AttentionKernels<float> AUGUR_LANES_TABLE(kFloatAttention) = {Write<float>, Attend<float>};
extern const AttentionKernels<BFloat16> AUGUR_LANES_TABLE(kBf16Attention) = {Write<BFloat16>,
                                                                             Attend<BFloat16>};

}  // namespace augur
