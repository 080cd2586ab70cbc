#include "kernels/decode/paged_attention_bfmmla.h"

#if defined(__aarch64__) && defined(__linux__)

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/simd/bfmmla.h"
#include "kernels/simd/rounded_lanes.h"

namespace augur {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kMostHeads = 3;  // worked on at once: as many as have their sums in registers
constexpr int kBlock = 16;     // channels of values that lie together
constexpr int kTokenPairs = kPageTokens / 2, kChannelPairs = kBlock / 2;
constexpr int kQuads = kPageTokens / 4;

inline const uint16_t* Bits(const BFloat16* from) { return reinterpret_cast<const uint16_t*>(from); }

// A head's part of the p-th page of a sequence.
inline const uint16_t* KeyPage(const PagedShape& shape, const KvPages<BFloat16>& kv, const PagedPlace& at,
                               int64_t p) {
  const int64_t head = static_cast<int64_t>(at.kv_head) * shape.head_dim * kPageTokens;
  return Bits(kv.keys) + at.token.pages[p] * shape.key_elements() + head;
}
inline const uint16_t* ValuePage(const PagedShape& shape, const KvPages<BFloat16>& kv, const PagedPlace& at,
                                 int64_t p) {
  const int64_t head = static_cast<int64_t>(at.kv_head) * PaddedHeadDim(shape.head_dim) * kPageTokens;
  return Bits(kv.values) + at.token.pages[p] * shape.value_elements() + head;
}

// Heads' queries [heads, head_dim], four channels at a time, to `to`, `to + step`, ...
template <int kHeads>
inline void PackQueries(const float* q, int head_dim, uint16_t* to, int64_t step) {
  for (int d = 0; d < head_dim; d += 4, to += step) {
    for (int h = 0; h < kHeads; ++h) {
      StoreBf16<MachineBf16>(LoadFloats(q + h * head_dim + d), to + h * 4);
    }
  }
}

// Brings 64 elements to the second-level cache.
inline void Fetch(const uint16_t* from) {
  __builtin_prefetch(from, 0, 2);
  __builtin_prefetch(from + 32, 0, 2);
}

// Scores of one page, two rows for each pair of heads. Meanwhile `ahead`, as much as a page, is fetched.
template <int kPairs>
AUGUR_BF16_TARGET inline void ScorePage(const uint16_t* keys, const uint16_t* ahead, const uint16_t* q,
                                        int head_dim, float* scores, int64_t stride) {
  constexpr int kStep = 4 * kPageTokens;
  float32x4_t sum[kPairs][kTokenPairs] = {};
  for (int d = 0; d < head_dim; d += 4, keys += kStep, q += kPairs * 8) {
    if (ahead != nullptr) Fetch(ahead + d * kPageTokens);
    bfloat16x8_t heads[kPairs];
    for (int i = 0; i < kPairs; ++i) heads[i] = LoadEight(q + i * 8);
    for (int j = 0; j < kTokenPairs; ++j) {
      const bfloat16x8_t tokens = LoadEight(keys + j * 8);
      for (int i = 0; i < kPairs; ++i) sum[i][j] = vbfmmlaq_f32(sum[i][j], heads[i], tokens);
    }
  }
  for (int i = 0; i < kPairs; ++i) {
    float* even = scores + 2 * i * stride;
    for (int j = 0; j < kTokenPairs; j += 2) {
      const float64x2_t a = vreinterpretq_f64_f32(sum[i][j]), b = vreinterpretq_f64_f32(sum[i][j + 1]);
      vst1q_f32(even + 2 * j, vreinterpretq_f32_f64(vzip1q_f64(a, b)));
      vst1q_f32(even + stride + 2 * j, vreinterpretq_f32_f64(vzip2q_f64(a, b)));
    }
  }
}

// Weights exp((score - largest) * scale) of a head's scores [padded], next to nothing beyond `length`, each
// split into a bfloat16 and what that leaves over, another: together as good as a float of 16 bits. Four
// tokens at a time go to `to`, `to + step`, ... Returns their sum.
AUGUR_BF16_TARGET inline float SplitWeights(float* scores, int64_t length, int64_t padded, float scale,
                                            uint16_t* to, int64_t step) {
  std::fill(scores + length, scores + padded, -kInfinity);
  float32x4_t most = vdupq_n_f32(-kInfinity);
  for (int64_t i = 0; i < padded; i += 4) most = vmaxq_f32(most, vld1q_f32(scores + i));
  const float largest = vmaxvq_f32(most);
  // A page at a time, so that four exponentials are on their way at once.
  Floats sums[kQuads] = {};
  for (int64_t i = 0; i < padded; i += kPageTokens) {
    float32x4_t weight[kQuads];
    for (int j = 0; j < kQuads; ++j) {
      const Floats x = (LoadFloats(scores + i + 4 * j) - largest) * scale;
      weight[j] = (float32x4_t)BoundedExp(AtLeast(x, -87.0f));
      sums[j] += (Floats)weight[j];
    }
    for (int j = 0; j < kQuads; ++j, to += step) {
      const bfloat16x4_t high = vcvt_bf16_f32(weight[j]);
      const bfloat16x4_t low = vcvt_bf16_f32(weight[j] - vcvt_f32_bf16(high));
      vst1q_bf16(reinterpret_cast<bfloat16_t*>(to), vcombine_bf16(high, low));
    }
  }
  return SumOf((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Adds four tokens' values of a block of channels, times weights [kHeads][high 4, low 4].
template <int kHeads, bool kMasked>
AUGUR_BF16_TARGET inline void AddTokens(const uint16_t* values, const uint16_t* weights, uint16x8_t mask,
                                        float32x4_t (&sum)[kHeads][kChannelPairs]) {
  bfloat16x8_t heads[kHeads];
  for (int h = 0; h < kHeads; ++h) heads[h] = LoadEight(weights + h * 8);
  for (int j = 0; j < kChannelPairs; ++j) {
    bfloat16x8_t channels = LoadEight(values + j * 8);
    if (kMasked) channels = vreinterpretq_bf16_u16(vandq_u16(vreinterpretq_u16_bf16(channels), mask));
    for (int h = 0; h < kHeads; ++h) sum[h][j] = vbfmmlaq_f32(sum[h][j], heads[h], channels);
  }
}

// The first `count` channels of a block, their two parts together, scaled.
inline void StoreBlock(const float32x4_t (&sum)[kChannelPairs], float scale, int count, float* out) {
  float block[kBlock];
  float* to = count == kBlock ? out : block;
  for (int j = 0; j < kChannelPairs; ++j) {
    vst1_f32(to + 2 * j, (vget_low_f32(sum[j]) + vget_high_f32(sum[j])) * scale);
  }
  if (count < kBlock) std::copy_n(block, count, out);
}

template <int kHeads>
AUGUR_BF16_TARGET void AttendHeads(const PagedShape& shape, const KvPages<BFloat16>& kv,
                                   const PagedPlace& here, const PagedPlace* next, const float* q, float* out,
                                   Bf16AttentionScratch* x) {
  constexpr int kPairs = (kHeads + 1) / 2;
  const PagedToken& token = here.token;
  const int64_t length = token.position + 1, pages = (length + kPageTokens - 1) / kPageTokens;
  const int64_t stride = pages * kPageTokens;
  const int64_t next_pages = next != nullptr ? next->token.position / kPageTokens + 1 : 0;
  const int padded = PaddedHeadDim(shape.head_dim);
  x->queries.assign(shape.head_dim * kPairs * 2, 0);
  x->scores.resize(stride * kPairs * 2);
  x->weights.resize(stride * kHeads * 2);

  PackQueries<kHeads>(q, shape.head_dim, x->queries.data(), kPairs * 8);
  for (int64_t p = 0; p < pages; ++p) {
    const uint16_t* ahead = p < next_pages ? KeyPage(shape, kv, *next, p) : nullptr;
    ScorePage<kPairs>(KeyPage(shape, kv, here, p), ahead, x->queries.data(), shape.head_dim,
                      x->scores.data() + p * kPageTokens, stride);
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  float inverse[kHeads];
  for (int h = 0; h < kHeads; ++h) {
    inverse[h] = 1.0f / SplitWeights(x->scores.data() + h * stride, length, stride, scale,
                                     x->weights.data() + h * 8, kHeads * 8);
  }
  // What lies beyond the sequence's length may be anything, and anything times zero may be NaN.
  const uint64_t used = length % 4 == 0 ? ~uint64_t{0} : (uint64_t{1} << (length % 4 * 16)) - 1;
  const uint16x8_t mask = vreinterpretq_u16_u64(vdupq_n_u64(used));
  for (int d = 0; d < padded; d += kBlock) {
    float32x4_t sum[kHeads][kChannelPairs] = {};
    const uint16_t* weights = x->weights.data();
    int64_t t = 0;
    for (; t + 4 < length; t += 4, weights += kHeads * 8) {
      const int64_t p = t / kPageTokens, place = d * kPageTokens + t % kPageTokens * kBlock;
      if (p < next_pages) Fetch(ValuePage(shape, kv, *next, p) + place);
      AddTokens<kHeads, false>(ValuePage(shape, kv, here, p) + place, weights, mask, sum);
    }
    AddTokens<kHeads, true>(
        ValuePage(shape, kv, here, t / kPageTokens) + d * kPageTokens + t % kPageTokens * kBlock, weights,
        mask, sum);
    for (int h = 0; h < kHeads; ++h) {
      StoreBlock(sum[h], inverse[h], std::min(kBlock, shape.head_dim - d), out + h * shape.head_dim + d);
    }
  }
}

}  // namespace

void WriteKvBfmmla(const PagedShape& shape, const KvPages<BFloat16>& kv, const PagedToken& token,
                   const float* keys, const float* values) {
  const int head_dim = shape.head_dim, padded = PaddedHeadDim(head_dim);
  const int64_t page = token.pages[token.position / kPageTokens];
  const int slot = token.position % kPageTokens;
  auto* key = reinterpret_cast<uint16_t*>(kv.keys + page * shape.key_elements()) + slot * 4;
  auto* value = reinterpret_cast<uint16_t*>(kv.values + page * shape.value_elements()) +
                slot / 4 * 4 * kBlock + slot % 4;
  for (int h = 0; h < shape.kv_heads; ++h, keys += head_dim, values += head_dim) {
    for (int d = 0; d < head_dim; d += 4, key += kPageTokens * 4) {
      StoreBf16<MachineBf16>(LoadFloats(keys + d), key);
    }
    for (int d = 0; d < padded; d += 4) {
      const Halves four = ToBf16<MachineBf16>(d < head_dim ? LoadFloats(values + d) : Floats{});
      for (int i = 0; i < 4; ++i) value[(d % kBlock + i) * 4] = four[i];
      if (d % kBlock == kBlock - 4) value += kBlock * kPageTokens;
    }
  }
}

void AttendBfmmla(const PagedShape& shape, const KvPages<BFloat16>& kv, const PagedPlace& here,
                  const PagedPlace* next, const float* q, float* out, Bf16AttentionScratch* x) {
  const int group = shape.heads / shape.kv_heads;
  // An odd pair of heads costs as much as a full one, so four go as two and two.
  for (int h = 0, heads = 0; h < group; h += heads) {
    heads = group - h == 4 ? 2 : std::min(kMostHeads, group - h);
    const float* from = q + h * shape.head_dim;
    float* to = out + h * shape.head_dim;
    switch (heads) {
      case 3:
        AttendHeads<3>(shape, kv, here, next, from, to, x);
        break;
      case 2:
        AttendHeads<2>(shape, kv, here, next, from, to, x);
        break;
      default:
        AttendHeads<1>(shape, kv, here, next, from, to, x);
    }
  }
}

}  // namespace augur

#else

namespace augur {

void WriteKvBfmmla(const PagedShape&, const KvPages<BFloat16>&, const PagedToken&, const float*,
                   const float*) {}
void AttendBfmmla(const PagedShape&, const KvPages<BFloat16>&, const PagedPlace&, const PagedPlace*,
                  const float*, float*, Bf16AttentionScratch*) {}

}  // namespace augur

#endif
