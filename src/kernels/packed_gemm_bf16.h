// The BFMMLA product, for packed_gemm_cpu.cc.
#pragma once

#include <cstdint>

namespace augur {

// Rows of activations that lie interleaved, so that one stream of memory holds what a step multiplies.
inline constexpr int64_t kGroupRows = 12;

struct Bf16Product {
  const uint16_t* a;           // [m / kGroupRows][k4][kGroupRows][4], whole groups
  const uint16_t* b;           // [tiles][k4][8][4]
  int64_t m, k4;               // k4: a quarter of the padded width
  const float* row_scales;     // [m] or null
  const float* column_scales;  // [tiles * 8], null together with row_scales
  const float* bias;           // [tiles * 8] or null
  bool round_to_bf16;
  float* out;
  int64_t out_stride;
};

bool MachineHasBfmmla();
// Columns 8 * tile .. 8 * tile + 7 of all rows. Only where MachineHasBfmmla().
void BfmmlaTile(const Bf16Product& product, int64_t tile);

}  // namespace augur
