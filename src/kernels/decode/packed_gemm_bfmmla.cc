// Tiles of packed weights by BFMMLA.
#if defined(__aarch64__)

#include <algorithm>

#include "kernels/decode/tile_kernels.h"
#include "kernels/simd/bfmmla.h"
#include "kernels/simd/rounded_lanes.h"

namespace augur {
namespace {

// Rows of activations and columns of weights that lie interleaved, so that one stream of memory each holds
// what a step multiplies: 24 sums of two by two, with what they are made of, fill the 32 registers.
constexpr int64_t kGroupRows = 8, kTileColumns = 12;
constexpr int64_t kWidthStep = 8;
constexpr int kColumnPairs = kTileColumns / 2;
constexpr int64_t kLine = 64;  // bytes of a cache line

struct GroupProduct : TileProduct {
  explicit GroupProduct(const TileProduct& product)
      : TileProduct(product),
        a(static_cast<const uint16_t*>(rows)),
        b(static_cast<const uint16_t*>(weights)),
        k4(width / 4) {}
  const uint16_t* a;  // [m / kGroupRows][k4][kGroupRows][4], whole groups
  const uint16_t* b;  // [tiles][k4][kTileColumns][4]
  int64_t k4;
};

// Addresses to fetch while a group is multiplied, one every two steps.
struct Ahead {
  const char* at;
  int64_t step;
};

// The first pairs of rows of a group times a tile, into sums [2 * kPairs][kTileColumns].
template <int kPairs>
AUGUR_BF16_TARGET void MultiplyPairs(const uint16_t* a, const uint16_t* b, int64_t k4, Ahead ahead,
                                     float* sums) {
  float32x4_t sum[kColumnPairs][kPairs] = {};
  for (int64_t k = 0; k < k4; ++k, a += kGroupRows * 4, b += kTileColumns * 4) {
    __builtin_prefetch(ahead.at + k / 2 * ahead.step, 0, 2);
    bfloat16x8_t rows[kPairs];
    for (int i = 0; i < kPairs; ++i) rows[i] = LoadEight(a + i * 8);
    for (int j = 0; j < kColumnPairs; ++j) {
      const bfloat16x8_t columns = LoadEight(b + j * 8);
      for (int i = 0; i < kPairs; ++i) sum[j][i] = vbfmmlaq_f32(sum[j][i], rows[i], columns);
    }
  }
  for (int i = 0; i < kPairs; ++i) {
    for (int j = 0; j < kColumnPairs; ++j) {
      vst1_f32(sums + 2 * i * kTileColumns + 2 * j, vget_low_f32(sum[j][i]));
      vst1_f32(sums + (2 * i + 1) * kTileColumns + 2 * j, vget_high_f32(sum[j][i]));
    }
  }
}

// The same of a whole group. In assembly, since compilers run out of registers once two steps are written
// out. v0-v3 hold the rows, v4-v7 columns, v8-v31 the sums: four of the first pair of columns and so on. What
// a step begins with is loaded in the step before, so that no multiplication waits for its factors in the
// queue that the next ones need.
// clang-format off
#define AUGUR_LOAD(first, second, from, offset) \
  "ldp q" #first ", q" #second ", [%[" #from "], #" #offset "]\n"
// Two pairs of rows times two pairs of columns.
#define AUGUR_PRODUCTS(row0, row1, columns0, columns1, s00, s10, s01, s11) \
  "bfmmla v" #s00 ".4s, v" #row0 ".8h, v" #columns0 ".8h\n"                \
  "bfmmla v" #s10 ".4s, v" #row1 ".8h, v" #columns0 ".8h\n"                \
  "bfmmla v" #s01 ".4s, v" #row0 ".8h, v" #columns1 ".8h\n"                \
  "bfmmla v" #s11 ".4s, v" #row1 ".8h, v" #columns1 ".8h\n"
// Finds the rows in v0-v3 and the first columns in c0 and c1, leaves the next step's there and in c2 and c3.
// b1, b2: offsets of the other columns; next_b, next_a0, next_a1: of the next step.
#define AUGUR_STEP(c0, c1, c2, c3, b1, b2, next_b, next_a0, next_a1, fetch) \
  AUGUR_LOAD(c2, c3, b, b1)                                                 \
  AUGUR_PRODUCTS(0, 1, c0, c1, 8, 9, 12, 13)                                \
  AUGUR_PRODUCTS(2, 3, c0, c1, 10, 11, 14, 15)                              \
  AUGUR_LOAD(c0, c1, b, b2)                                                 \
  AUGUR_PRODUCTS(0, 1, c2, c3, 16, 17, 20, 21)                              \
  AUGUR_PRODUCTS(2, 3, c2, c3, 18, 19, 22, 23)                              \
  AUGUR_LOAD(c2, c3, b, next_b)                                             \
  AUGUR_PRODUCTS(0, 1, c0, c1, 24, 25, 28, 29)                              \
  AUGUR_LOAD(0, 1, a, next_a0)                                              \
  fetch                                                                     \
  AUGUR_PRODUCTS(2, 3, c0, c1, 26, 27, 30, 31)                              \
  AUGUR_LOAD(2, 3, a, next_a1)
#define AUGUR_FETCH           \
  "prfm pldl2keep, [%[at]]\n" \
  "add %[at], %[at], %[step]\n"
#define AUGUR_ZERO(r0, r1, r2, r3) \
  "movi v" #r0 ".4s, #0\n"         \
  "movi v" #r1 ".4s, #0\n"         \
  "movi v" #r2 ".4s, #0\n"         \
  "movi v" #r3 ".4s, #0\n"
// Four columns of two rows, from the sums of two pairs of columns.
#define AUGUR_STORE(left, right, even, odd)     \
  "zip1 v0.2d, v" #left ".2d, v" #right ".2d\n" \
  "zip2 v1.2d, v" #left ".2d, v" #right ".2d\n" \
  "str q0, [%[sums], #" #even "]\n"             \
  "str q1, [%[sums], #" #odd "]\n"

AUGUR_BF16_TARGET inline void MultiplyGroup(const uint16_t* a, const uint16_t* b, int64_t k4, Ahead ahead,
                                            float* sums) {
  asm volatile(
      AUGUR_ZERO(8, 9, 10, 11)
      AUGUR_ZERO(12, 13, 14, 15)
      AUGUR_ZERO(16, 17, 18, 19)
      AUGUR_ZERO(20, 21, 22, 23)
      AUGUR_ZERO(24, 25, 26, 27)
      AUGUR_ZERO(28, 29, 30, 31)
      AUGUR_LOAD(0, 1, a, 0)
      AUGUR_LOAD(2, 3, a, 32)
      AUGUR_LOAD(4, 5, b, 0)
      "1:\n"
      AUGUR_STEP(4, 5, 6, 7, 32, 64, 96, 64, 96, AUGUR_FETCH)
      AUGUR_STEP(6, 7, 4, 5, 128, 160, 192, 128, 160, "")
      "add %[a], %[a], #128\n"
      "add %[b], %[b], #192\n"
      "subs %[k4], %[k4], #2\n"
      "b.ne 1b\n"
      AUGUR_STORE(8, 12, 0, 48)
      AUGUR_STORE(16, 20, 16, 64)
      AUGUR_STORE(24, 28, 32, 80)
      AUGUR_STORE(9, 13, 96, 144)
      AUGUR_STORE(17, 21, 112, 160)
      AUGUR_STORE(25, 29, 128, 176)
      AUGUR_STORE(10, 14, 192, 240)
      AUGUR_STORE(18, 22, 208, 256)
      AUGUR_STORE(26, 30, 224, 272)
      AUGUR_STORE(11, 15, 288, 336)
      AUGUR_STORE(19, 23, 304, 352)
      AUGUR_STORE(27, 31, 320, 368)
      : [a] "+r"(a), [b] "+r"(b), [k4] "+r"(k4), [at] "+r"(ahead.at)
      : [step] "r"(ahead.step), [sums] "r"(sums)
      : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",
        "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",
        "v27", "v28", "v29", "v30", "v31");
}
// clang-format on

// `rows` rows of one group times a tile, into sums [kGroupRows][kTileColumns].
void Multiply(const GroupProduct& p, int64_t group, int64_t rows, const uint16_t* b, Ahead ahead,
              float* sums) {
  const uint16_t* a = p.a + group * p.k4 * kGroupRows * 4;
  switch ((rows + 1) / 2) {
    case 4:
      return MultiplyGroup(a, b, p.k4, ahead, sums);
    case 3:
      return MultiplyPairs<3>(a, b, p.k4, ahead, sums);
    case 2:
      return MultiplyPairs<2>(a, b, p.k4, ahead, sums);
    default:
      return MultiplyPairs<1>(a, b, p.k4, ahead, sums);
  }
}

// What to fetch during the `index`th of `count` products while tiles of `bytes` lie ahead at `next`: memory
// would otherwise idle while groups beyond the first reuse a tile. A single group streams, which the
// processor foresees by itself.
Ahead FetchFor(const GroupProduct& p, int64_t index, int64_t count, const uint16_t* next, int64_t bytes) {
  const auto* begin = reinterpret_cast<const char*>(next);
  const int64_t fetches = p.k4 / 2, lines = (bytes / (count * fetches) + kLine / 2) / kLine;
  const int64_t step = std::max<int64_t>(lines, 1) * kLine, fetched = index * fetches * step;
  if (p.m <= kGroupRows || fetched >= bytes) return {reinterpret_cast<const char*>(p.a), 0};
  return {begin + fetched, step};
}

// Scales, bias and rounding of `rows` rows of sums [rows][kTileColumns].
AUGUR_BF16_TARGET inline void Store(const GroupProduct& p, const float* sums, int64_t row, int64_t rows,
                                    int64_t column) {
  constexpr int kVectors = kTileColumns / 4;
  const bool scaled = p.row_scales != nullptr;
  float32x4_t scales[kVectors], bias[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    scales[v] = scaled ? vld1q_f32(p.column_scales + column + v * 4) : vdupq_n_f32(1);
    bias[v] = p.bias != nullptr ? vld1q_f32(p.bias + column + v * 4) : vdupq_n_f32(0);
  }
  float* to = p.out + row * p.out_stride + column;
  for (int64_t r = 0; r < rows; ++r, to += p.out_stride, sums += kTileColumns) {
    for (int v = 0; v < kVectors; ++v) {
      float32x4_t x = vld1q_f32(sums + v * 4);
      if (scaled) x = x * p.row_scales[row + r] * scales[v];
      x = x + bias[v];
      if (p.round_to_bf16) x = vcvt_f32_bf16(vcvt_bf16_f32(x));
      vst1q_f32(to + v * 4, x);
    }
  }
}

// sums [rows][kTileColumns] += bias [kTileColumns].
void AddBias(const float* bias, int64_t rows, float* sums) {
  for (int64_t r = 0; r < rows; ++r, sums += kTileColumns) {
    for (int64_t c = 0; c < kTileColumns; ++c) sums[c] += bias[c];
  }
}

// Two tiles' sums, rounded, made into activations. Two rows at a time and all their exponentials before the
// first division, so that six are on their way at once; an odd last row has its pair's sums next to it.
AUGUR_BF16_TARGET inline void StoreSwiglu(const float* gates, const float* ups, int64_t rows, uint16_t* to,
                                          int64_t columns) {
  constexpr int kRow = kTileColumns / 4, kBatch = 2 * kRow;
  for (int64_t r = 0; r < rows; r += 2, gates += 4 * kBatch, ups += 4 * kBatch, to += 8) {
    Floats gate[kBatch], divisor[kBatch];
    for (int i = 0; i < kBatch; ++i) {
      gate[i] = (Floats)vcvt_f32_bf16(vcvt_bf16_f32(vld1q_f32(gates + 4 * i)));
    }
    for (int i = 0; i < kBatch; ++i) divisor[i] = 1.0f + VectorExp(-gate[i]);
    bfloat16x4_t inner[kBatch];
    for (int i = 0; i < kBatch; ++i) {
      const Floats up = (Floats)vcvt_f32_bf16(vcvt_bf16_f32(vld1q_f32(ups + 4 * i)));
      inner[i] = vcvt_bf16_f32((float32x4_t)(gate[i] / divisor[i] * up));
    }
    for (int i = 0; i < kBatch; ++i) {
      const int64_t c = i % kRow * 4, row = i / kRow;
      if (c < columns) vst1_bf16(reinterpret_cast<bfloat16_t*>(to + c * kGroupRows + row * 4), inner[i]);
    }
  }
}

// The columns of one tile, of all rows.
void MultiplyTile(const GroupProduct& p, int64_t tile) {
  const int64_t groups = (p.m + kGroupRows - 1) / kGroupRows, size = p.k4 * kTileColumns * 4;
  const uint16_t* b = p.b + tile * size;
  alignas(kLine) float sums[kGroupRows * kTileColumns];
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t row = group * kGroupRows, rows = std::min(kGroupRows, p.m - row);
    Multiply(p, group, rows, b, FetchFor(p, group, groups, b + size, size * 2), sums);
    Store(p, sums, row, rows, tile * kTileColumns);
  }
}

// silu(gate) * up of two tiles, as activations [m / kGroupRows][inner_width / 4][kGroupRows][4].
void MultiplyPair(const GroupProduct& p, int64_t pair) {
  const int64_t groups = (p.m + kGroupRows - 1) / kGroupRows, size = p.k4 * kTileColumns * 4;
  const uint16_t *gate = p.b + 2 * pair * size, *up = gate + size, *next = up + size;
  alignas(kLine) float gates[kGroupRows * kTileColumns], ups[kGroupRows * kTileColumns];
  const int64_t column = pair * kTileColumns;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t rows = std::min(kGroupRows, p.m - group * kGroupRows);
    Multiply(p, group, rows, gate, FetchFor(p, 2 * group, 2 * groups, next, size * 4), gates);
    Multiply(p, group, rows, up, FetchFor(p, 2 * group + 1, 2 * groups, next, size * 4), ups);
    if (p.bias != nullptr) {
      AddBias(p.bias + 2 * column, rows, gates);
      AddBias(p.bias + 2 * column + kTileColumns, rows, ups);
    }
    StoreSwiglu(gates, ups, rows,
                static_cast<uint16_t*>(p.inner) + (group * p.inner_width + column) * kGroupRows,
                std::min(kTileColumns, p.inner_width - column));
  }
}

void MultiplyTiles(const TileProduct& product, int64_t first, int64_t last) {
  const GroupProduct p(product);
  for (int64_t tile = first; tile < last; ++tile) MultiplyTile(p, tile);
}

void MultiplySwiglu(const TileProduct& product, int64_t first, int64_t last) {
  const GroupProduct p(product);
  for (int64_t pair = first; pair < last; ++pair) MultiplyPair(p, pair);
}

// Four columns of a row at a time.
void SetGroupRow(const float* values, int64_t width, int64_t padded, int64_t row, void* rows) {
  constexpr int64_t kStride = kGroupRows * 4;
  uint16_t* to = static_cast<uint16_t*>(rows) + row / kGroupRows * kGroupRows * padded + row % kGroupRows * 4;
  int64_t k = 0;
  for (; k + 4 <= width; k += 4, to += kStride) StoreBf16<MachineBf16>(LoadFloats(values + k), to);
  for (; k < padded; k += 4, to += kStride) {
    float last[4] = {};
    if (k < width) std::copy(values + k, values + width, last);
    StoreBf16<MachineBf16>(LoadFloats(last), to);
  }
}

}  // namespace

extern const TileKernels kBfmmlaTiles = {
    .columns = kTileColumns,
    .neighbours = 4,
    .width_step = kWidthStep,
    .row_step = kGroupRows,
    .row_gap = 0,
    .read_ahead = 32,
    .narrow_rows = true,
    .narrow_weights = true,
    .set_row = SetGroupRow,
    .multiply = MultiplyTiles,
    .swiglu = MultiplySwiglu,
};

}  // namespace augur

#endif
