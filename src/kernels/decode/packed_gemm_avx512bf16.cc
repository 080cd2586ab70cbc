// Tiles of packed weights by products of bfloat16 pairs.
#if defined(__AVX512BF16__)

#include "kernels/decode/tile_rows.h"

namespace augur {
inline namespace AUGUR_LANES {
namespace {

constexpr int kGroup = 12, kVectors = kTileColumns / kFloats;

struct PairCore {
  using Row = uint16_t;
  using Weight = uint16_t;
  static constexpr int64_t kMostRows = kGroup, kRowStep = 1;
  struct Scope {};

  static int64_t Steps(int64_t width) { return width / 2; }

  template <int kRows>
  static void SumsOf(const uint16_t* rows, int64_t stride, const uint16_t* b, int64_t width, Ahead ahead,
                     float* sums) {
    __m512 sum[kRows][kVectors] = {};
    const uint16_t* a[(kRows + 2) / 3];
    Unroll<(kRows + 2) / 3>([&](auto i) AUGUR_INLINE { a[i] = rows + i * 3 * stride; });
    for (int64_t k = 0; k < width; k += 2, b += 2 * kTileColumns) {
      __builtin_prefetch(ahead.at, 0, 2);
      ahead.at += ahead.step;
      const __m512i left = _mm512_loadu_si512(b), right = _mm512_loadu_si512(b + kTileColumns);
      Unroll<kRows>([&](auto i) AUGUR_INLINE {
        __m512i pair;
        asm("vpbroadcastd %1, %0"
            : "=v"(pair)
            : "m"(*reinterpret_cast<const uint32_t*>(a[i / 3] + i % 3 * stride)));
        sum[i][0] = _mm512_dpbf16_ps(sum[i][0], (__m512bh)pair, (__m512bh)left);
        sum[i][1] = _mm512_dpbf16_ps(sum[i][1], (__m512bh)pair, (__m512bh)right);
      });
      Unroll<(kRows + 2) / 3>([&](auto i) AUGUR_INLINE { a[i] += 2; });
    }
    Unroll<kRows>([&](auto i) AUGUR_INLINE {
      StoreFloats((Floats)sum[i][0], sums + i * kTileColumns);
      StoreFloats((Floats)sum[i][1], sums + i * kTileColumns + kFloats);
    });
  }

  static void Sums(const uint16_t* a, int64_t stride, const uint16_t* b, int64_t width, int64_t rows,
                   Ahead ahead, float* sums) {
    Unroll<kGroup>([&](auto i) {
      if (rows == i + 1) SumsOf<i + 1>(a, stride, b, width, ahead, sums);
    });
  }
};

}  // namespace
}  // namespace AUGUR_LANES

extern const TileKernels kAvx512Bf16Tiles = {
    .columns = kTileColumns,
    .neighbours = 2,
    .width_step = kTileColumns,
    .row_step = 1,
    .row_gap = kRowGap<uint16_t>,
    .read_ahead = 0,
    .narrow_rows = true,
    .narrow_weights = true,
    .set_row = SetPlainRow<uint16_t>,
    .multiply = MultiplyTiles<PairCore>,
    .swiglu = MultiplySwiglu<PairCore>,
};

}  // namespace augur

#endif
