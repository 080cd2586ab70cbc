// What happens to single rows, by width of vectors: for decode_rows_cpu.cc and packed_gemm_cpu.cc.
#pragma once

#include <cstdint>

#include "kernels/decode/decode_rows.h"
#include "kernels/simd/lanes.h"

namespace augur {

// For one type that values are rounded to; see decode_rows.h.
struct RowKernels {
  void (*add_norm)(int64_t width, const float* added, const float* weight, float eps, float* x, float* y);
  void (*rotate)(const RotaryRow& shape, const float* cos, const float* sin, float* qk);
  void (*swiglu)(int64_t width, const float* gate_up, float* out);
};
AUGUR_LANES_DECLARE(RowKernels, kFloatRows);
AUGUR_LANES_DECLARE(RowKernels, kBf16Rows);
#if defined(__aarch64__)
extern const RowKernels kMachineBf16Rows;
#endif

struct RoundingKernels {
  float (*quantize)(float* values, int64_t width);
  void (*narrow)(float* values, int64_t width);
};
AUGUR_LANES_DECLARE(RoundingKernels, kRounding);

// Scales a row so that its largest magnitude is e4m3's, rounds it to e4m3, returns the scale. A NaN spreads
// to the scale.
inline float QuantizeRow(float* values, int64_t width) {
  return AUGUR_LANES_CHOICE(kRounding).quantize(values, width);
}

// Leaves the row's values as bfloat16 in the first half of its memory.
inline void NarrowRow(float* values, int64_t width) { AUGUR_LANES_CHOICE(kRounding).narrow(values, width); }

}  // namespace augur
