// Tiles of packed weights by AMX: a tile register holds 16 rows of 32 bfloat16, of 16 columns' weights in
// pairs along the width, or of 16 sums.
#if defined(__AMX_BF16__)

#include "kernels/decode/tile_rows.h"

namespace augur {
inline namespace AUGUR_LANES {
namespace {

constexpr int kTileRows = 16, kDepth = 32;  // rows and width of a register of activations
constexpr int kHalf = 2 * kTileRows;        // elements of 16 columns at one pair of the width

// Register 0-3: sums of two times 16 rows and two times 16 columns; 4, 5: activations; 6, 7: weights.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct AmxCore {
  using Row = uint16_t;
  using Weight = uint16_t;
  static constexpr int64_t kMostRows = 2 * kTileRows, kRowStep = kTileRows;

  // The registers' shape. Other libraries of the thread may use them too, so that they are not kept.
  struct Scope {
    Scope() {
      static constexpr TileConfig kConfig;
      _tile_loadconfig(&kConfig);
    }
    ~Scope() { _tile_release(); }
  };

  static int64_t Steps(int64_t width) { return width; }

  // Weights of the next tile, as many lines as this step reads.
  static Ahead Fetch(Ahead ahead) {
    if (ahead.step == 0) return ahead;  // fetches would take the tiles' turns at the cache
    for (int i = 0; i < kDepth; ++i, ahead.at += ahead.step) __builtin_prefetch(ahead.at, 0, 2);
    return ahead;
  }

  static void Sums(const uint16_t* a, int64_t stride, const uint16_t* b, int64_t width, int64_t rows,
                   Ahead ahead, float* sums) {
    constexpr int64_t kWeightBytes = 2 * kTileColumns * sizeof(uint16_t);  // from one pair of k to the next
    constexpr int64_t kSumBytes = kTileColumns * sizeof(float);
    const int64_t row_bytes = stride * static_cast<int64_t>(sizeof(uint16_t));
    const bool both = rows > kTileRows;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < width; k += kDepth, b += kDepth * kTileColumns) {
      ahead = Fetch(ahead);
      _tile_loadd(4, a + k, row_bytes);
      _tile_loadd(6, b, kWeightBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + kHalf, kWeightBytes);
      _tile_dpbf16ps(1, 4, 7);
      if (both) {
        _tile_loadd(5, a + kTileRows * stride + k, row_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, sums, kSumBytes);
    _tile_stored(1, sums + kTileRows, kSumBytes);
    if (both) {
      _tile_stored(2, sums + kTileRows * kTileColumns, kSumBytes);
      _tile_stored(3, sums + kTileRows * kTileColumns + kTileRows, kSumBytes);
    }
  }
};

}  // namespace
}  // namespace AUGUR_LANES

extern const TileKernels kAmxTiles = {
    .columns = kTileColumns,
    .neighbours = 2,
    .width_step = kDepth,
    .row_step = kTileRows,
    .row_gap = kRowGap<uint16_t>,
    .read_ahead = 0,
    .narrow_rows = true,
    .narrow_weights = true,
    .set_row = SetPlainRow<uint16_t>,
    .multiply = MultiplyTiles<AmxCore>,
    .swiglu = MultiplySwiglu<AmxCore>,
};

}  // namespace augur

#endif
