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

// Scales, bias and rounding of four neighbouring columns of a row.
AUGUR_BF16_TARGET inline void StoreFour(const Bf16Product& p, int64_t row, int64_t column, float32x4_t x) {
  if (p.row_scales != nullptr) x = x * p.row_scales[row] * vld1q_f32(p.column_scales + column);
  if (p.bias != nullptr) x = x + vld1q_f32(p.bias + column);
  if (p.round_to_bf16) x = vcvt_f32_bf16(vcvt_bf16_f32(x));
  vst1q_f32(p.out + row * p.out_stride + column, x);
}

// kPairs pairs of rows times eight columns, held in registers over the whole width. Meanwhile a part of the
// tile after this one is fetched, `step` bytes at a time: memory would otherwise idle while rows beyond the
// first few reuse this one.
template <int kPairs>
AUGUR_BF16_TARGET void Tile(const Bf16Product& p, int64_t pair, int64_t tile, const char* ahead,
                            int64_t step) {
  float32x4_t sum[kPairs][4];
  for (int i = 0; i < kPairs; ++i) {
    for (int j = 0; j < 4; ++j) sum[i][j] = vdupq_n_f32(0);
  }
  const uint16_t* a = p.a + pair * p.k4 * 8;
  const uint16_t* b = p.b + tile * p.k4 * 32;
  for (int64_t k = 0; k < p.k4; ++k) {
    __builtin_prefetch(ahead + k * step);
    bfloat16x8_t columns[4];
    for (int j = 0; j < 4; ++j) columns[j] = Load(b + k * 32 + j * 8);
    for (int i = 0; i < kPairs; ++i) {
      const bfloat16x8_t rows = Load(a + (i * p.k4 + k) * 8);
      for (int j = 0; j < 4; ++j) sum[i][j] = vbfmmlaq_f32(sum[i][j], rows, columns[j]);
    }
  }
  for (int i = 0; i < kPairs; ++i) {
    const int64_t row = 2 * (pair + i);
    for (int j = 0; j < 4; j += 2) {
      const float32x4_t first = vcombine_f32(vget_low_f32(sum[i][j]), vget_low_f32(sum[i][j + 1]));
      const float32x4_t second = vcombine_f32(vget_high_f32(sum[i][j]), vget_high_f32(sum[i][j + 1]));
      StoreFour(p, row, tile * 8 + j * 2, first);
      if (row + 1 < p.m) StoreFour(p, row + 1, tile * 8 + j * 2, second);
    }
  }
}

}  // namespace

bool MachineHasBfmmla() {
  static const bool has = (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
  return has;
}

void BfmmlaTile(const Bf16Product& p, int64_t tile) {
  constexpr int64_t kMostPairs = 6;  // 24 sums, 4 columns and a row: 29 of 32 registers
  const int64_t pairs = (p.m + 1) / 2, passes = (pairs + kMostPairs - 1) / kMostPairs;
  const char* next = reinterpret_cast<const char*>(p.b + (tile + 1) * p.k4 * 32);
  // Of a tile's 64 bytes for each k. A single pass streams, which the processor foresees by itself.
  const int64_t step = passes == 1 ? 0 : 64 / std::min<int64_t>(passes, 4);
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t begin = pairs * pass / passes, count = pairs * (pass + 1) / passes - begin;
    const char* ahead = next + std::min<int64_t>(pass, 3) * p.k4 * step;
    switch (count) {
      case 6:
        Tile<6>(p, begin, tile, ahead, step);
        break;
      case 5:
        Tile<5>(p, begin, tile, ahead, step);
        break;
      case 4:
        Tile<4>(p, begin, tile, ahead, step);
        break;
      case 3:
        Tile<3>(p, begin, tile, ahead, step);
        break;
      case 2:
        Tile<2>(p, begin, tile, ahead, step);
        break;
      default:
        Tile<1>(p, begin, tile, ahead, step);
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
