#include "ops/gemm_rows.h"

#include <algorithm>
#include <limits>

namespace augur {
namespace {

constexpr int64_t kStep = 64;
// What a product of any size costs beyond its own, in rows: the head's gradient is read and written once
// more.
constexpr int64_t kOverheadRows = 350;

struct Tile {
  int64_t rows, columns;
};
// Shapes that cuBLAS takes on Hopper for large products.
constexpr Tile kTiles[] = {{128, 256}, {256, 128}, {320, 128}, {192, 192}, {128, 128}};

int64_t RoundUpDivide(int64_t x, int64_t y) { return (x + y - 1) / y; }

// In elements of the product, those of unfilled waves included.
int64_t Cost(int64_t rows, int64_t width, int multiprocessors) {
  int64_t best = std::numeric_limits<int64_t>::max();
  for (const Tile& tile : kTiles) {
    const int64_t tiles = RoundUpDivide(rows, tile.rows) * RoundUpDivide(width, tile.columns);
    best = std::min(best, RoundUpDivide(tiles, multiprocessors) * multiprocessors * tile.rows * tile.columns);
  }
  return best;
}

}  // namespace

int64_t RowsToMultiply(int64_t waiting, int64_t width, int multiprocessors) {
  if (multiprocessors == 0 || width == 0) return waiting;
  const auto cost_of_each = [&](int64_t rows) {
    return static_cast<double>(Cost(rows, width, multiprocessors) + kOverheadRows * width) /
           static_cast<double>(rows);
  };
  int64_t best = waiting;
  for (int64_t rows = waiting / kStep * kStep; rows >= std::max((waiting + 1) / 2, kStep); rows -= kStep) {
    if (cost_of_each(rows) < cost_of_each(best)) best = rows;
  }
  return best;
}

}  // namespace augur
