#include "kernels/packed_gemm_bf16.h"

#if defined(__aarch64__) && defined(__linux__)

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <algorithm>

namespace augur {
namespace {

#define AUGUR_BF16_TARGET __attribute__((target("arch=armv8.2-a+bf16")))

AUGUR_BF16_TARGET inline bfloat16x8_t Load(const uint16_t* from) {
  return vld1q_bf16(reinterpret_cast<const bfloat16_t*>(from));
}

// Scales, bias and rounding of four neighbouring columns of the first `rows` rows.
template <int kPairs>
AUGUR_BF16_TARGET inline void StoreColumns(const Bf16Product& p, int64_t row, int64_t rows, int64_t column,
                                           const float32x4_t (&left)[kPairs],
                                           const float32x4_t (&right)[kPairs]) {
  const bool scaled = p.row_scales != nullptr;
  const float32x4_t scales = scaled ? vld1q_f32(p.column_scales + column) : vdupq_n_f32(1);
  const float32x4_t bias = p.bias != nullptr ? vld1q_f32(p.bias + column) : vdupq_n_f32(0);
  float* to = p.out + row * p.out_stride + column;
  for (int64_t r = 0; r < 2 * kPairs; ++r, to += p.out_stride) {
    if (r >= rows) break;
    const int64_t i = r / 2;
    float32x4_t x = r % 2 == 0 ? vcombine_f32(vget_low_f32(left[i]), vget_low_f32(right[i]))
                               : vcombine_f32(vget_high_f32(left[i]), vget_high_f32(right[i]));
    if (scaled) x = x * p.row_scales[row + r] * scales;
    x = x + bias;
    if (p.round_to_bf16) x = vcvt_f32_bf16(vcvt_bf16_f32(x));
    vst1q_f32(to, x);
  }
}

// kPairs pairs of rows of one group times eight columns, held in registers over the whole width. Meanwhile a
// part of the tile after this one is fetched, `step` bytes at a time: memory would otherwise idle while the
// groups beyond the first reuse this one.
template <int kPairs>
AUGUR_BF16_TARGET void Tile(const Bf16Product& p, int64_t group, int64_t tile, const char* ahead,
                            int64_t step) {
  float32x4_t sum[4][kPairs];
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < kPairs; ++i) sum[j][i] = vdupq_n_f32(0);
  }
  const uint16_t* a = p.a + group * p.k4 * kGroupRows * 4;
  const uint16_t* b = p.b + tile * p.k4 * 32;
  for (int64_t k = 0; k < p.k4; ++k) {
    __builtin_prefetch(ahead + k * step);
    bfloat16x8_t columns[4];
    for (int j = 0; j < 4; ++j) columns[j] = Load(b + k * 32 + j * 8);
    for (int i = 0; i < kPairs; ++i) {
      const bfloat16x8_t rows = Load(a + k * kGroupRows * 4 + i * 8);
      for (int j = 0; j < 4; ++j) sum[j][i] = vbfmmlaq_f32(sum[j][i], rows, columns[j]);
    }
  }
  const int64_t row = group * kGroupRows;
  StoreColumns<kPairs>(p, row, p.m - row, tile * 8, sum[0], sum[1]);
  StoreColumns<kPairs>(p, row, p.m - row, tile * 8 + 4, sum[2], sum[3]);
}

}  // namespace

bool MachineHasBfmmla() {
  static const bool has = (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
  return has;
}

void BfmmlaTile(const Bf16Product& p, int64_t tile) {
  const int64_t groups = (p.m + kGroupRows - 1) / kGroupRows;
  const char* next = reinterpret_cast<const char*>(p.b + (tile + 1) * p.k4 * 32);
  // Of a tile's 64 bytes for each k. A single group streams, which the processor foresees by itself.
  const int64_t step = groups == 1 ? 0 : 64 / std::min<int64_t>(groups, 4);
  for (int64_t group = 0; group < groups; ++group) {
    const char* ahead = next + std::min<int64_t>(group, 3) * p.k4 * step;
    // 24 sums, 4 columns and a row take 29 of 32 registers.
    switch (std::min(kGroupRows, p.m - group * kGroupRows + 1) / 2) {
      case 6:
        Tile<6>(p, group, tile, ahead, step);
        break;
      case 5:
        Tile<5>(p, group, tile, ahead, step);
        break;
      case 4:
        Tile<4>(p, group, tile, ahead, step);
        break;
      case 3:
        Tile<3>(p, group, tile, ahead, step);
        break;
      case 2:
        Tile<2>(p, group, tile, ahead, step);
        break;
      default:
        Tile<1>(p, group, tile, ahead, step);
    }
  }
}

}  // namespace augur

#else

namespace augur {

bool MachineHasBfmmla() { return false; }
void BfmmlaTile(const Bf16Product&, int64_t) {}

}  // namespace augur

#endif
