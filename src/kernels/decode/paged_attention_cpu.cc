#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/decode/paged_attention.h"
#include "kernels/decode/paged_attention_bf16.h"
#include "kernels/simd/parallel_work.h"
#include "kernels/simd/rounded_lanes.h"
#include "kernels/simd/simd.h"

namespace augur {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kVectors = kPageTokens / kFloats;  // of a page's tokens, and of a block of 16 channels
constexpr int kMostHeads = 4;                    // worked on at once

inline void LoadSixteen(const float* from, Floats to[kVectors]) {
  std::memcpy(to, from, kVectors * sizeof(Floats));
}

inline void LoadSixteen(const BFloat16* from, Floats to[kVectors]) {
#if defined(__ARM_NEON)
  for (int v = 0; v < kVectors; v += 2) {
    const uint16x8_t eight = vld1q_u16(reinterpret_cast<const uint16_t*>(from) + v * kFloats);
    to[v] = (Floats)vshll_n_u16(vget_low_u16(eight), 16);
    to[v + 1] = (Floats)vshll_high_n_u16(eight, 16);
  }
#else
  for (int v = 0; v < kVectors; ++v) {
    for (int j = 0; j < kFloats; ++j) to[v][j] = from[v * kFloats + j];
  }
#endif
}

inline void StoreSixteen(const Floats from[kVectors], float* to) {
  std::memcpy(to, from, kVectors * sizeof(Floats));
}

// One thread's work on up to kMostHeads heads of one token.
struct Scratch {
  explicit Scratch(int head_dim) : out(kMostHeads * PaddedHeadDim(head_dim)) {}
  std::vector<float> scores;  // [heads][positions rounded up to pages]
  std::vector<float> out;     // [heads][padded head_dim]
};

// Scores of one page: q is [kHeads][head_dim], scaled already. Meanwhile what comes next is fetched.
template <int kHeads, typename T>
inline void ScorePage(const T* keys, const T* next, const float* q, int head_dim, float* scores,
                      int64_t stride) {
  Floats sum[kHeads][kVectors] = {};
  for (int d = 0; d < head_dim; ++d) {
    __builtin_prefetch(next + d * kPageTokens);
    Floats key[kVectors];
    LoadSixteen(keys + d * kPageTokens, key);
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kVectors; ++v) sum[h][v] += q[h * head_dim + d] * key[v];
    }
  }
  for (int h = 0; h < kHeads; ++h) StoreSixteen(sum[h], scores + h * stride);
}

// Adds a page's values, weighted, to out [kHeads][padded].
template <int kHeads, typename T>
inline void AddPage(const T* values, const T* next, int count, const float* weights, int64_t stride,
                    int padded, float* out) {
  for (int d = 0; d < padded; d += kPageTokens) {
    Floats sum[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h) LoadSixteen(out + h * padded + d, sum[h]);
    for (int j = 0; j < count; ++j) {
      __builtin_prefetch(next + j * padded + d);
      Floats value[kVectors];
      LoadSixteen(values + j * padded + d, value);
      for (int h = 0; h < kHeads; ++h) {
        for (int v = 0; v < kVectors; ++v) sum[h][v] += weights[h * stride + j] * value[v];
      }
    }
    for (int h = 0; h < kHeads; ++h) StoreSixteen(sum[h], out + h * padded + d);
  }
}

// Turns scores into exp(score - largest), zero beyond `length`; returns their sum.
inline float SoftmaxRow(float* scores, int64_t length, int64_t padded) {
  std::fill(scores + length, scores + padded, -kInfinity);
  Floats most = Floats{} - kInfinity;
  for (int64_t i = 0; i < padded; i += kFloats) {
    const Floats x = LoadFloats(scores + i);
    most = x > most ? x : most;
  }
  const float largest = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
  Floats sum{};
  for (int64_t i = 0; i < padded; i += kFloats) {
    const Floats x = LoadFloats(scores + i) - largest;
    const Floats weight = x < -87.0f ? Floats{} : VectorExp(x);
    sum += weight;
    StoreFloats(weight, scores + i);
  }
  return SumOf(sum);
}

template <int kHeads, typename T>
void AttendHeads(const PagedShape& shape, const KvPages<T>& kv, const PagedToken& token, int kv_head,
                 const float* q, float* out, Scratch* x) {
  const int64_t length = token.position + 1, pages = (length + kPageTokens - 1) / kPageTokens;
  const int64_t stride = pages * kPageTokens;
  const int padded = PaddedHeadDim(shape.head_dim);
  if (static_cast<int64_t>(x->scores.size()) < kHeads * stride) x->scores.resize(kMostHeads * stride);
  const int64_t key_part = static_cast<int64_t>(kv_head) * shape.head_dim * kPageTokens;
  const int64_t value_part = static_cast<int64_t>(kv_head) * padded * kPageTokens;
  auto keys = [&](int64_t p) { return kv.keys + token.pages[p] * shape.key_elements() + key_part; };
  auto values = [&](int64_t p) { return kv.values + token.pages[p] * shape.value_elements() + value_part; };
  for (int64_t p = 0; p < pages; ++p) {
    const T* next = p + 1 < pages ? keys(p + 1) : values(0);
    ScorePage<kHeads>(keys(p), next, q, shape.head_dim, x->scores.data() + p * kPageTokens, stride);
  }
  float sums[kHeads];
  for (int h = 0; h < kHeads; ++h) sums[h] = SoftmaxRow(x->scores.data() + h * stride, length, stride);
  std::fill_n(x->out.data(), kHeads * padded, 0.0f);
  for (int64_t p = 0; p < pages; ++p) {
    const int count = static_cast<int>(std::min<int64_t>(kPageTokens, length - p * kPageTokens));
    AddPage<kHeads>(values(p), values(std::min(p + 1, pages - 1)), count, x->scores.data() + p * kPageTokens,
                    stride, padded, x->out.data());
  }
  for (int h = 0; h < kHeads; ++h) {
    const float scale = 1.0f / sums[h];
    for (int d = 0; d < shape.head_dim; ++d) out[h * shape.head_dim + d] = x->out[h * padded + d] * scale;
  }
}

// All heads that share a key/value head.
template <typename T>
void AttendGroup(const PagedShape& shape, const KvPages<T>& kv, const PagedToken& token, int kv_head,
                 const float* q, float* out, std::vector<float>* scaled, Scratch* x) {
  const int group = shape.heads / shape.kv_heads, size = group * shape.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  scaled->resize(size);
  for (int i = 0; i < size; ++i) (*scaled)[i] = q[i] * scale;
  for (int h = 0; h < group; h += kMostHeads) {
    const float* from = scaled->data() + h * shape.head_dim;
    float* to = out + h * shape.head_dim;
    switch (std::min(kMostHeads, group - h)) {
      case 4:
        AttendHeads<4>(shape, kv, token, kv_head, from, to, x);
        break;
      case 3:
        AttendHeads<3>(shape, kv, token, kv_head, from, to, x);
        break;
      case 2:
        AttendHeads<2>(shape, kv, token, kv_head, from, to, x);
        break;
      default:
        AttendHeads<1>(shape, kv, token, kv_head, from, to, x);
    }
  }
}

}  // namespace

template <typename T>
void WriteKvCpu(const PagedShape& shape, const KvPages<T>& kv, const PagedToken& token, const float* keys,
                const float* values) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (AttendsWithBfmmla(shape)) return WriteKvBfmmla(shape, kv, token, keys, values);
  }
  const int64_t page = token.pages[token.position / kPageTokens];
  const int slot = token.position % kPageTokens, padded = PaddedHeadDim(shape.head_dim);
  T* key = kv.keys + page * shape.key_elements() + slot;
  for (int i = 0; i < shape.kv_heads * shape.head_dim; ++i) {
    key[static_cast<int64_t>(i) * kPageTokens] = FromFloat<T>(keys[i]);
  }
  for (int h = 0; h < shape.kv_heads; ++h) {
    T* to =
        kv.values + page * shape.value_elements() + (static_cast<int64_t>(h) * kPageTokens + slot) * padded;
    for (int d = 0; d < shape.head_dim; ++d) to[d] = FromFloat<T>(values[h * shape.head_dim + d]);
    for (int d = shape.head_dim; d < padded; ++d) to[d] = FromFloat<T>(0.0f);
  }
}

template <typename T>
void PagedAttentionCpu(const PagedShape& shape, const KvPages<T>& kv, const PagedToken* tokens, int64_t count,
                       const float* q, int64_t q_stride, float* out) {
  const int64_t tasks = count * shape.kv_heads;
  const int64_t row = static_cast<int64_t>(shape.heads) * shape.head_dim, part = row / shape.kv_heads;
  int64_t work = 0;
  for (int64_t t = 0; t < count; ++t) work += (tokens[t].position + 1) * row;
#pragma omp parallel if (WorthThreads(work))
  {
    Scratch scratch(shape.head_dim);
    std::vector<float> scaled;
    Bf16AttentionScratch narrow;
#pragma omp for schedule(dynamic, 4)
    for (int64_t task = 0; task < tasks; ++task) {
      const int64_t t = task / shape.kv_heads;
      const int kv_head = static_cast<int>(task % shape.kv_heads);
      const float* from = q + t * q_stride + kv_head * part;
      float* to = out + t * row + kv_head * part;
      if constexpr (std::is_same_v<T, BFloat16>) {
        if (AttendsWithBfmmla(shape)) {
          const int64_t after = std::min(task + 1, tasks - 1), u = after / shape.kv_heads;
          const PagedPlace next{tokens[u], static_cast<int>(after % shape.kv_heads)};
          // The tokens of one prompt follow each other and share what is in the cache.
          const bool fetch = u == 0 || tokens[u].pages != tokens[u - 1].pages;
          AttendBfmmla(shape, kv, {tokens[t], kv_head}, fetch ? &next : nullptr, from, to, &narrow);
          continue;
        }
      }
      AttendGroup(shape, kv, tokens[t], kv_head, from, to, &scaled, &scratch);
    }
  }
}

#define AUGUR_INSTANTIATE(T)                                                                           \
  template void WriteKvCpu<T>(const PagedShape&, const KvPages<T>&, const PagedToken&, const float*,   \
                              const float*);                                                           \
  template void PagedAttentionCpu<T>(const PagedShape&, const KvPages<T>&, const PagedToken*, int64_t, \
                                     const float*, int64_t, float*);
AUGUR_INSTANTIATE(float)
AUGUR_INSTANTIATE(BFloat16)

}  // namespace augur
