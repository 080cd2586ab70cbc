// Tiles of packed weights by float multiply-adds.
#include "kernels/decode/tile_rows.h"

namespace augur {
inline namespace AUGUR_LANES {
namespace {

// Rows and vectors of columns whose sums are held in registers over the whole width: 24 of 32, or 12 of 16.
#if defined(__AVX512F__)
constexpr int kGroup = 12, kVectors = 2;
#elif defined(__AVX2__)
constexpr int kGroup = 6, kVectors = 2;
#elif defined(__aarch64__)
constexpr int kGroup = 6, kVectors = 4;
#else
constexpr int kGroup = 4, kVectors = 2;
#endif
constexpr int kPart = kVectors * kFloats;  // columns

// kRows rows times columns at `b`, neighbours along the width k and k + 1.
template <int kRows>
inline AUGUR_INLINE void Step(const float* const (&a)[(kRows + 2) / 3], int64_t stride, int64_t k,
                              const Floats (&columns)[kVectors], Floats (&sum)[kRows][kVectors]) {
  Unroll<kRows>([&](auto i) AUGUR_INLINE {
    const Floats x = Broadcast(a[i / 3] + i % 3 * stride + k);
    Unroll<kVectors>([&](auto v) AUGUR_INLINE { sum[i][v] = MultiplyAdd(sum[i][v], x, columns[v]); });
  });
}

// The first kPart of a tile's columns at `b`.
template <int kRows, typename Weight>
inline AUGUR_INLINE void PartSums(const float* rows, int64_t stride, const Weight* b, int64_t width,
                                  Ahead ahead, float* sums) {
  Floats sum[kRows][kVectors] = {};
  // One register for every three rows, which the stride's multiples reach.
  const float* a[(kRows + 2) / 3];
  Unroll<(kRows + 2) / 3>([&](auto i) AUGUR_INLINE { a[i] = rows + i * 3 * stride; });
  for (int64_t k = 0; k < width; k += 2, b += 2 * kTileColumns) {
    __builtin_prefetch(ahead.at, 0, 2);
    ahead.at += ahead.step;
    Floats columns[kVectors];
    if constexpr (sizeof(Weight) == 2) {  // neighbours along the width in one word
      const auto* words = reinterpret_cast<const Pairs*>(b);
      Unroll<kVectors>([&](auto v) AUGUR_INLINE { columns[v] = FirstOf(words[v]); });
      Step<kRows>(a, stride, 0, columns, sum);
      Unroll<kVectors>([&](auto v) AUGUR_INLINE { columns[v] = SecondOf(words[v]); });
    } else {
      Unroll<kVectors>([&](auto v) AUGUR_INLINE { columns[v] = LoadFloats(b + v * kFloats); });
      Step<kRows>(a, stride, 0, columns, sum);
      Unroll<kVectors>([&](auto v) AUGUR_INLINE { columns[v] = LoadFloats(b + kTileColumns + v * kFloats); });
    }
    Step<kRows>(a, stride, 1, columns, sum);
    Unroll<(kRows + 2) / 3>([&](auto i) AUGUR_INLINE { a[i] += 2; });
  }
  Unroll<kRows>([&](auto i) AUGUR_INLINE {
    Unroll<kVectors>([&](auto v)
                         AUGUR_INLINE { StoreFloats(sum[i][v], sums + i * kTileColumns + v * kFloats); });
  });
}

template <typename T>
struct FloatCore {
  using Row = float;
  using Weight = T;
  static constexpr int64_t kMostRows = kGroup, kRowStep = 1;
  struct Scope {};
  static constexpr int64_t kNeighbours = sizeof(T) == 2 ? 2 : 1;

  static int64_t Steps(int64_t width) { return width / 2 * (kTileColumns / kPart); }

  template <int kRows>
  static void SumsOf(const float* a, int64_t stride, const T* b, int64_t width, Ahead ahead, float* sums) {
    for (int64_t part = 0; part < kTileColumns; part += kPart) {
      PartSums<kRows>(a, stride, b + part * kNeighbours, width, ahead, sums + part);
      ahead.at += ahead.step * (width / 2);
    }
  }

  static void Sums(const float* a, int64_t stride, const T* b, int64_t width, int64_t rows, Ahead ahead,
                   float* sums) {
    Unroll<kGroup>([&](auto i) {
      if (rows == i + 1) SumsOf<i + 1>(a, stride, b, width, ahead, sums);
    });
  }
};

void SetFloatRow(const float* values, int64_t width, int64_t padded, int64_t row, void* rows) {
  float* to = static_cast<float*>(rows) + row * RowStride<float>(padded);
  std::copy_n(values, width, to);
  std::fill(to + width, to + padded, 0.0f);
}

}  // namespace
}  // namespace AUGUR_LANES

extern const TileKernels AUGUR_LANES_TABLE(kFloatTiles) = {
    .columns = kTileColumns,
    .neighbours = 1,
    .width_step = 2,
    .row_step = 1,
    .row_gap = kRowGap<float>,
    .read_ahead = 0,
    .narrow_rows = false,
    .narrow_weights = false,
    .set_row = SetFloatRow,
    .multiply = MultiplyTiles<FloatCore<float>>,
    .swiglu = nullptr,
};

extern const TileKernels AUGUR_LANES_TABLE(kBf16Tiles) = {
    .columns = kTileColumns,
    .neighbours = 2,
    .width_step = kTileColumns,  // a SwiGLU fills whole tiles of the next product's width
    .row_step = 1,
    .row_gap = kRowGap<float>,
    .read_ahead = 0,
    .narrow_rows = false,
    .narrow_weights = true,
    .set_row = SetPlainRow<float>,
    .multiply = MultiplyTiles<FloatCore<uint16_t>>,
    .swiglu = MultiplySwiglu<FloatCore<uint16_t>>,
};

}  // namespace augur
