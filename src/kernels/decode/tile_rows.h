// What the tile kernels over plain rows of activations share: tiles of 32 columns, rows in groups whose sums
// fit the registers, and what becomes of the sums.
#pragma once

#include <algorithm>

#include "kernels/decode/tile_kernels.h"
#include "kernels/simd/multiply_add.h"
#include "kernels/simd/rounded_lanes.h"

namespace augur {
inline namespace AUGUR_LANES {

inline constexpr int64_t kTileColumns = 32;
inline constexpr int64_t kLine = 64;  // bytes of a cache line

// Elements between two rows: a line of cache, or rows of a power of two would share their cache sets.
template <typename T>
inline constexpr int64_t kRowGap = kLine / sizeof(T);

template <typename T>
inline int64_t RowStride(int64_t padded_width) {
  return padded_width + kRowGap<T>;
}

inline void StoreLanesAs(Floats x, float* to) { StoreFloats(Rounded<BFloat16>(x), to); }
inline void StoreLanesAs(Floats x, uint16_t* to) { StoreBf16(x, to); }

// A row as T, zeros up to its padded width.
template <typename T>
void SetPlainRow(const float* values, int64_t width, int64_t padded, int64_t row, void* rows) {
  T* to = static_cast<T*>(rows) + row * RowStride<T>(padded);
  int64_t k = 0;
  for (; k + kFloats <= width; k += kFloats) StoreLanesAs(LoadFloats(values + k), to + k);
  for (; k < padded; k += kFloats) {
    Floats last{};
    for (int64_t i = k; i < width; ++i) last[i - k] = values[i];
    StoreLanesAs(last, to + k);
  }
}

// Addresses to fetch while a group is multiplied, one at every step.
struct Ahead {
  const char* at;
  int64_t step;
};

// What to fetch during the `index`th of `count` products of `steps` steps while `bytes` lie ahead at `next`:
// memory would otherwise idle while groups beyond the first reuse a tile.
inline Ahead FetchFor(int64_t index, int64_t count, int64_t steps, const void* next, int64_t bytes) {
  const auto* begin = static_cast<const char*>(next);
  const int64_t lines = (bytes / (count * steps) + kLine - 1) / kLine;
  const int64_t step = std::max<int64_t>(lines, 1) * kLine, fetched = index * steps * step;
  if (fetched >= bytes) return {begin - bytes, 0};
  return {begin + fetched, step};
}

// Scales, bias and rounding of sums [rows][kTileColumns].
inline void StoreTile(const TileProduct& p, const float* sums, int64_t row, int64_t rows, int64_t column) {
  constexpr int kVectors = kTileColumns / kFloats;
  float* to = p.out + row * p.out_stride + column;
  for (int64_t r = 0; r < rows; ++r, to += p.out_stride, sums += kTileColumns) {
    for (int v = 0; v < kVectors; ++v) {
      Floats x = LoadFloats(sums + v * kFloats);
      const int64_t c = column + v * kFloats;
      if (p.row_scales != nullptr) x = x * p.row_scales[row + r] * LoadFloats(p.column_scales + c);
      if (p.bias != nullptr) x = x + LoadFloats(p.bias + c);
      if (p.round_to_bf16) x = Rounded<BFloat16>(x);
      StoreFloats(x, to + v * kFloats);
    }
  }
}

// silu(gate) * up of two tiles' sums, as activations of T.
template <typename T>
inline void StoreSwiglu(const TileProduct& p, const float* gates, const float* ups, int64_t row, int64_t rows,
                        int64_t pair) {
  constexpr int kVectors = kTileColumns / kFloats;
  const int64_t stride = RowStride<T>(p.inner_width), column = pair * kTileColumns;
  T* to = static_cast<T*>(p.inner) + row * stride + column;
  const float* bias = p.bias == nullptr ? nullptr : p.bias + 2 * column;
  for (int64_t r = 0; r < rows; ++r, to += stride, gates += kTileColumns, ups += kTileColumns) {
    for (int v = 0; v < kVectors; ++v) {
      Floats gate = LoadFloats(gates + v * kFloats), up = LoadFloats(ups + v * kFloats);
      if (bias != nullptr) {
        gate = gate + LoadFloats(bias + v * kFloats);
        up = up + LoadFloats(bias + kTileColumns + v * kFloats);
      }
      StoreLanesAs(Swiglu(Rounded<BFloat16>(gate), Rounded<BFloat16>(up)), to + v * kFloats);
    }
  }
}

// How `m` rows fall into groups of at most `most`: as few as there can be, of nearly equal size, which is a
// multiple of `step`.
struct RowGroups {
  RowGroups(int64_t rows, int64_t most, int64_t step) : m(rows), count((rows + most - 1) / most) {
    const int64_t even = count == 0 ? 0 : (m + count - 1) / count;
    each = (even + step - 1) / step * step;
  }
  int64_t begin(int64_t group) const { return group * each; }
  int64_t size(int64_t group) const { return std::min(each, m - begin(group)); }
  int64_t m, count, each;
};

// The kernels from a Core:
//   Row, Weight           what activations and weights are held as
//   kMostRows, kRowStep   the size of a group
//   Steps(width)          how often Sums fetches ahead
//   Scope                 what has to be there meanwhile
//   Sums(a, stride, b, width, rows, ahead, sums)   sums [rows][kTileColumns] of `rows` rows times a tile
template <typename Core>
void MultiplyTiles(const TileProduct& p, int64_t first, int64_t last) {
  using Row = typename Core::Row;
  using Weight = typename Core::Weight;
  const int64_t stride = RowStride<Row>(p.width), size = p.width * kTileColumns;
  const int64_t bytes = size * static_cast<int64_t>(sizeof(Weight)), steps = Core::Steps(p.width);
  const RowGroups groups(p.m, Core::kMostRows, Core::kRowStep);
  const auto* a = static_cast<const Row*>(p.rows);
  alignas(kLine) float sums[Core::kMostRows * kTileColumns];
  [[maybe_unused]] const typename Core::Scope scope;
  for (int64_t tile = first; tile < last; ++tile) {
    const auto* b = static_cast<const Weight*>(p.weights) + tile * size;
    for (int64_t g = 0; g < groups.count; ++g) {
      const int64_t row = groups.begin(g), rows = groups.size(g);
      Core::Sums(a + row * stride, stride, b, p.width, rows,
                 FetchFor(g, groups.count, steps, b + size, bytes), sums);
      StoreTile(p, sums, row, rows, tile * kTileColumns);
    }
  }
}

template <typename Core>
void MultiplySwiglu(const TileProduct& p, int64_t first, int64_t last) {
  using Row = typename Core::Row;
  using Weight = typename Core::Weight;
  const int64_t stride = RowStride<Row>(p.width), size = p.width * kTileColumns;
  const int64_t bytes = 2 * size * static_cast<int64_t>(sizeof(Weight)), steps = Core::Steps(p.width);
  const RowGroups groups(p.m, Core::kMostRows, Core::kRowStep);
  const int64_t products = 2 * groups.count;
  const auto* a = static_cast<const Row*>(p.rows);
  alignas(kLine) float gates[Core::kMostRows * kTileColumns], ups[Core::kMostRows * kTileColumns];
  [[maybe_unused]] const typename Core::Scope scope;
  for (int64_t pair = first; pair < last; ++pair) {
    const auto* gate = static_cast<const Weight*>(p.weights) + 2 * pair * size;
    const auto *up = gate + size, *next = up + size;
    for (int64_t g = 0; g < groups.count; ++g) {
      const int64_t row = groups.begin(g), rows = groups.size(g);
      const Row* from = a + row * stride;
      Core::Sums(from, stride, gate, p.width, rows, FetchFor(2 * g, products, steps, next, bytes), gates);
      Core::Sums(from, stride, up, p.width, rows, FetchFor(2 * g + 1, products, steps, next, bytes), ups);
      StoreSwiglu<Row>(p, gates, ups, row, rows, pair);
    }
  }
}

}  // namespace AUGUR_LANES
}  // namespace augur
