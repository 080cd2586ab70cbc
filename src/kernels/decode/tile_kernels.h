// What packed_gemm_cpu.cc asks of an instruction set: rows of activations times tiles of weights.
#pragma once

#include <cstdint>

#include "kernels/simd/lanes.h"

namespace augur {

struct TileProduct {
  const void* rows;            // the first of them, as set_row lays them out
  const void* weights;         // tiles [width / neighbours][columns][neighbours]
  int64_t m, width;            // width: padded
  const float* row_scales;     // [m] or null
  const float* column_scales;  // [tiles * columns], null together with row_scales
  const float* bias;           // [tiles * columns] or null
  bool round_to_bf16;
  float* out;
  int64_t out_stride;
  void* inner;          // the SwiGLU's results, rows of activations again,
  int64_t inner_width;  // of this padded width
};

struct TileKernels {
  int64_t columns;     // of a tile
  int64_t neighbours;  // along the width, that lie together in weights
  int64_t width_step;  // the width is padded with zeros to a multiple of this
  int64_t row_step;    // rows are padded, with anything, to a multiple of this
  int64_t row_gap;     // elements between the padded width of one row and the next
  int64_t read_ahead;  // elements beyond the end of either factor that are read, and not used
  bool narrow_rows;    // activations are bfloat16; otherwise floats
  bool narrow_weights;

  // Writes a row of activations, rounded already, to its place in rows of a padded width.
  void (*set_row)(const float* values, int64_t width, int64_t padded, int64_t row, void* rows);
  // The columns of tiles first .. last - 1, of all rows.
  void (*multiply)(const TileProduct& product, int64_t first, int64_t last);
  // silu(gate) * up of tiles 2 * pair (gates) and 2 * pair + 1 (ups), for pairs first .. last - 1, rounded to
  // bfloat16 before and after. Scales and out are not used. Null for weights in float.
  void (*swiglu)(const TileProduct& product, int64_t first, int64_t last);
};

// Float multiply-adds, weights in float and in bfloat16.
AUGUR_LANES_DECLARE(TileKernels, kFloatTiles);
AUGUR_LANES_DECLARE(TileKernels, kBf16Tiles);
#if defined(__x86_64__)
extern const TileKernels kAvx512Bf16Tiles, kAmxTiles;
#elif defined(__aarch64__)
extern const TileKernels kBfmmlaTiles;
#endif

}  // namespace augur
