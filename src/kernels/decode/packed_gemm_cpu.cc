#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/decode/packed_gemm.h"
#include "kernels/decode/packed_gemm_bf16.h"
#include "kernels/layer/fp8.h"
#include "kernels/simd/parallel_work.h"
#include "kernels/simd/rounded_lanes.h"
#include "kernels/simd/simd.h"

namespace augur {
namespace {

// Activations of this many elements are worked on together: they stay in the second-level cache.
constexpr int64_t kBlockElements = 128 << 10;
constexpr int64_t kPanel = 16;  // columns of a multiply-add panel

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

bool UsesTiles(GemmFormat format) { return format != GemmFormat::kFloat && MachineHasBfmmla(); }

// Scales a row so that its largest magnitude is e4m3's, rounds it to e4m3, returns the scale. A NaN spreads
// to the scale.
float QuantizeRow(float* values, int64_t width) {
  const int64_t whole = width / kFloats * kFloats;
  Floats most{};
  Ints odd{};
  for (int64_t i = 0; i < whole; i += kFloats) {
    const Floats x = LoadFloats(values + i);
    const Floats magnitude = (Floats)((Ints)x & INT32_MAX);
    most = magnitude > most ? magnitude : most;
    odd |= x != x;
  }
  float largest = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
  bool nan = (odd[0] | odd[1] | odd[2] | odd[3]) != 0;
  for (int64_t i = whole; i < width; ++i) {
    largest = std::max(largest, std::fabs(values[i]));
    nan |= std::isnan(values[i]);
  }
  const float scale = nan ? NAN : E4m3Scale(largest);
  for (int64_t i = 0; i < whole; i += kFloats) {
    StoreFloats(RoundToE4m3(LoadFloats(values + i) / scale), values + i);
  }
  for (int64_t i = whole; i < width; ++i) values[i] = RoundToE4m3(values[i] / scale);
  return scale;
}

// Writes four columns of a row at a time to `to`, `to + stride`, ...; columns beyond the width are zero.
void StoreByFours(const float* values, int64_t width, uint16_t* to, int64_t stride) {
  int64_t k = 0;
  for (; k + 4 <= width; k += 4, to += stride) StoreBf16<MachineBf16>(LoadFloats(values + k), to);
  for (; k < RoundUp(width, kWidthStep); k += 4, to += stride) {
    float last[4] = {};
    if (k < width) std::copy(values + k, values + width, last);
    StoreBf16<MachineBf16>(LoadFloats(last), to);
  }
}

#if defined(__x86_64__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
constexpr int kVectors = kPanel / kLanes;

inline __attribute__((always_inline)) Vector LoadVector(const float* from) {
  return *reinterpret_cast<const Vector*>(from);
}

inline __attribute__((always_inline)) Vector LoadVector(const uint16_t* from) {
  typedef uint16_t Halves __attribute__((vector_size(kLanes * sizeof(uint16_t)), aligned(2), may_alias));
  typedef uint32_t Words __attribute__((vector_size(kLanes * sizeof(uint32_t))));
  const Words wide = __builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words) << 16;
  return (Vector)wide;
}

struct FloatProduct {
  const float* a;  // [m, width]
  int64_t m, width;
  const float* row_scales;
  const float* column_scales;
  const float* bias;
  bool round_to_bf16;
  float* out;
  int64_t out_stride;
};

template <int kRows, typename T>
inline __attribute__((always_inline)) void PanelRows(const FloatProduct& p, const T* b, int64_t row,
                                                     int64_t column) {
  Vector sum[kRows][kVectors] = {};
  const float* a = p.a + row * p.width;
  for (int64_t k = 0; k < p.width; ++k) {
    Vector columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = LoadVector(b + k * kPanel + v * kLanes);
    for (int i = 0; i < kRows; ++i) {
      const float factor = a[i * p.width + k];
      for (int v = 0; v < kVectors; ++v) sum[i][v] += factor * columns[v];
    }
  }
  for (int i = 0; i < kRows; ++i) {
    float* to = p.out + (row + i) * p.out_stride + column;
    for (int v = 0; v < kVectors; ++v) {
      for (int l = 0; l < kLanes; ++l) {
        float x = sum[i][v][l];
        const int64_t c = column + v * kLanes + l;
        if (p.row_scales != nullptr) x = x * p.row_scales[row + i] * p.column_scales[c];
        if (p.bias != nullptr) x += p.bias[c];
        to[v * kLanes + l] = p.round_to_bf16 ? static_cast<float>(BFloat16::From(x)) : x;
      }
    }
  }
}

template <typename T>
inline __attribute__((always_inline)) void PanelAll(const FloatProduct& p, const T* b, int64_t column) {
  int64_t row = 0;
  for (; row + 4 <= p.m; row += 4) PanelRows<4>(p, b, row, column);
  for (; row < p.m; ++row) PanelRows<1>(p, b, row, column);
}

AUGUR_CPU_CLONES void FloatPanel(const FloatProduct& p, const float* b, int64_t column) {
  PanelAll(p, b, column);
}
AUGUR_CPU_CLONES void Bf16Panel(const FloatProduct& p, const uint16_t* b, int64_t column) {
  PanelAll(p, b, column);
}

}  // namespace

bool HasBf16MatrixInstructions() { return MachineHasBfmmla(); }

void GemmRows::Resize(int64_t rows, int64_t width) {
  rows_ = rows;
  width_ = width;
  if (UsesTiles(format_)) {
    const auto size =
        static_cast<size_t>(RoundUp(rows, kGroupRows) * RoundUp(width, kWidthStep) + kReadAhead);
    if (tiles_.size() < size) tiles_.resize(size);
  } else if (values_.size() < static_cast<size_t>(rows * width)) {
    values_.resize(rows * width);
  }
  if (format_ == GemmFormat::kFp8 && scales_.size() < static_cast<size_t>(rows)) scales_.resize(rows);
}

void GemmRows::SetRow(int64_t row, float* values) {
  if (format_ == GemmFormat::kFp8) scales_[row] = QuantizeRow(values, width_);
  if (!UsesTiles(format_)) {
    float* to = values_.data() + row * width_;
    if (format_ == GemmFormat::kFloat) {
      std::copy_n(values, width_, to);
    } else {
      for (int64_t i = 0; i < width_; ++i) to[i] = BFloat16::From(values[i]);
    }
    return;
  }
  const int64_t padded = RoundUp(width_, kWidthStep);
  StoreByFours(values, width_, tiles_.data() + row / kGroupRows * kGroupRows * padded + row % kGroupRows * 4,
               kGroupRows * 4);
}

PackedWeights::PackedWeights(GemmFormat format, int64_t outputs, int64_t width)
    : PackedWeights(format, outputs, width, 0) {}

PackedWeights PackedWeights::ForSwiglu(GemmFormat format, int64_t inner, int64_t width) {
  const bool fuses = UsesTiles(format) && format == GemmFormat::kBFloat16;
  return PackedWeights(format, 2 * inner, width, fuses ? inner : 0);
}

PackedWeights::PackedWeights(GemmFormat format, int64_t outputs, int64_t width, int64_t inner)
    : format_(format), outputs_(outputs), width_(width), inner_(inner) {
  if (UsesTiles(format)) {
    narrow_ = std::make_unique<uint16_t[]>(padded_outputs() * RoundUp(width, kWidthStep) + kReadAhead);
  } else if (format == GemmFormat::kFloat) {
    wide_ = std::make_unique<float[]>(padded_outputs() * width);
  } else {
    narrow_ = std::make_unique<uint16_t[]>(padded_outputs() * width);
  }
  if (format == GemmFormat::kFp8) scales_.resize(padded_outputs(), 1.0f);
}

int64_t PackedWeights::padded_outputs() const {
  if (inner_ > 0) return 2 * RoundUp(inner_, kTileColumns);
  return RoundUp(outputs_, UsesTiles(format_) ? kTileColumns : kPanel);
}

int64_t PackedWeights::Column(int64_t output) const {
  if (inner_ == 0) return output;
  const int64_t up = output / inner_, i = output % inner_;
  return (i / kTileColumns * 2 + up) * kTileColumns + i % kTileColumns;
}

int64_t PackedWeights::FirstIndex(int64_t output) const {
  const int64_t column = Column(output);
  if (!UsesTiles(format_)) return column / kPanel * kPanel * width_ + column % kPanel;
  return column / kTileColumns * kTileColumns * RoundUp(width_, kWidthStep) + column % kTileColumns * 4;
}

void PackedWeights::SetRow(int64_t output, float* values) {
  if (format_ == GemmFormat::kFp8) scales_[output] = QuantizeRow(values, width_);
  if (UsesTiles(format_)) {
    StoreByFours(values, width_, narrow_.get() + FirstIndex(output), 4 * kTileColumns);
    return;
  }
  const int64_t first = FirstIndex(output);
  for (int64_t i = 0; i < width_; ++i) {
    if (format_ == GemmFormat::kFloat) {
      wide_[first + i * kPanel] = values[i];
    } else {
      narrow_[first + i * kPanel] = BFloat16::From(values[i]).bits;
    }
  }
}

void PackedWeights::GetRow(int64_t output, float* values) const {
  const bool tiles = UsesTiles(format_);
  const float scale = format_ == GemmFormat::kFp8 ? scales_[output] : 1.0f;
  const int64_t first = FirstIndex(output);
  for (int64_t i = 0; i < width_; ++i) {
    const int64_t index = first + (tiles ? i / 4 * 4 * kTileColumns + i % 4 : i * kPanel);
    const float value = format_ == GemmFormat::kFloat ? wide_[index] : BFloat16{narrow_[index]};
    values[i] = value * scale;
  }
}

namespace {

// Calls work(product, first row, tile) for blocks of rows and tiles of the columns, shared by the threads.
template <typename Work>
void ForTiles(const GemmRows& rows, const PackedWeights& weights, const float* bias, int64_t tiles,
              const Work& work) {
  const int64_t count = rows.rows(), most = std::max(kBlockElements / weights.width(), 3 * kGroupRows);
  const int64_t blocks = std::max<int64_t>((count + most - 1) / most, 1);
  const int64_t block = RoundUp((count + blocks - 1) / blocks, kGroupRows);
  Bf16Product product{};
  product.b = weights.tiles();
  product.k4 = RoundUp(weights.width(), kWidthStep) / 4;
  product.column_scales = weights.scales();
  product.bias = bias;
#pragma omp parallel firstprivate(product) if (WorthThreads(count * weights.outputs() * weights.width() / 4))
  for (int64_t begin = 0; begin < count; begin += block) {
    product.m = std::min(block, count - begin);
    product.a = rows.tiles() + begin * product.k4 * 4;
    product.row_scales = rows.scales() == nullptr ? nullptr : rows.scales() + begin;
#pragma omp for schedule(static) nowait
    for (int64_t tile = 0; tile < tiles; ++tile) work(product, begin, tile);
  }
}

}  // namespace

void PackedGemmSwiglu(const GemmRows& rows, const PackedWeights& weights, const float* bias, GemmRows* to) {
  to->Resize(rows.rows(), weights.inner());
  const int64_t k4 = RoundUp(weights.inner(), kWidthStep) / 4;
  ForTiles(rows, weights, bias, weights.padded_outputs() / kTileColumns / 2,
           [&](const Bf16Product& product, int64_t begin, int64_t pair) {
             BfmmlaSwiglu(product, pair, to->tiles() + begin * k4 * 4, k4);
           });
}

void PackedGemm(const GemmRows& rows, const PackedWeights& weights, const float* bias, bool round_to_bf16,
                float* out, int64_t out_stride) {
  const int64_t columns = weights.padded_outputs(), work = rows.rows() * columns * weights.width() / 4;
  if (UsesTiles(weights.format())) {
    ForTiles(rows, weights, bias, columns / kTileColumns,
             [&](Bf16Product product, int64_t begin, int64_t tile) {
               product.round_to_bf16 = round_to_bf16;
               product.out = out + begin * out_stride;
               product.out_stride = out_stride;
               BfmmlaTile(product, tile);
             });
    return;
  }
  const bool narrow = weights.format() != GemmFormat::kFloat;
  const FloatProduct product{rows.values(),    rows.rows(), weights.width(),         rows.scales(),
                             weights.scales(), bias,        narrow && round_to_bf16, out,
                             out_stride};
#pragma omp parallel for schedule(static) if (WorthThreads(work))
  for (int64_t column = 0; column < columns; column += kPanel) {
    const int64_t start = column * weights.width();
    if (narrow) {
      Bf16Panel(product, weights.tiles() + start, column);
    } else {
      FloatPanel(product, weights.panels() + start, column);
    }
  }
}

}  // namespace augur
