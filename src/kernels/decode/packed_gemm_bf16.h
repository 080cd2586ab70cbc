// The BFMMLA product, for packed_gemm_cpu.cc.
#pragma once

#include <cstdint>

namespace augur {

// Rows of activations and outputs of the weights that lie interleaved, so that one stream of memory each
// holds what a step multiplies: 24 sums of two by two, with what they are made of, fill the 32 registers.
inline constexpr int64_t kGroupRows = 8, kTileColumns = 12;
// The width is padded with zeros to a multiple of this.
inline constexpr int64_t kWidthStep = 8;
// Elements beyond the end of either factor that are read, and not used.
inline constexpr int64_t kReadAhead = 32;

struct Bf16Product {
  const uint16_t* a;           // [m / kGroupRows][k4][kGroupRows][4], whole groups
  const uint16_t* b;           // [tiles][k4][kTileColumns][4]
  int64_t m, k4;               // k4: a quarter of the padded width
  const float* row_scales;     // [m] or null
  const float* column_scales;  // [tiles * kTileColumns], null together with row_scales
  const float* bias;           // [tiles * kTileColumns] or null
  bool round_to_bf16;
  float* out;
  int64_t out_stride;
};

bool MachineHasBfmmla();
// The columns of one tile, of all rows. Only where MachineHasBfmmla().
void BfmmlaTile(const Bf16Product& product, int64_t tile);
// silu(gate) * up of the tiles 2 * pair and 2 * pair + 1, rounded to bfloat16 before and after, as columns of
// the activations `to` [m / kGroupRows][to_k4][kGroupRows][4]. The product's scales and out are not used.
void BfmmlaSwiglu(const Bf16Product& product, int64_t pair, uint16_t* to, int64_t to_k4);

}  // namespace augur
