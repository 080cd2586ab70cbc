#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/fp8.h"
#include "kernels/packed_gemm.h"
#include "kernels/packed_gemm_bf16.h"
#include "kernels/parallel_work.h"
#include "kernels/simd.h"

namespace augur {
namespace {

constexpr int64_t kTile = 8;        // columns of a BFMMLA tile
constexpr int64_t kBlockRows = 40;  // of activations, which then stay in the first-level cache
constexpr int64_t kPanel = 16;      // columns of a multiply-add panel

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

bool UsesTiles(GemmFormat format) { return format != GemmFormat::kFloat && MachineHasBfmmla(); }

// Scales a row so that its largest magnitude is e4m3's, rounds it to e4m3, returns the scale. A NaN spreads
// to the scale.
float QuantizeRow(float* values, int64_t width) {
  float largest = 0;
  bool nan = false;
  for (int64_t i = 0; i < width; ++i) {
    largest = std::max(largest, std::fabs(values[i]));
    nan |= std::isnan(values[i]);
  }
  const float scale = nan ? NAN : E4m3Scale(largest);
  for (int64_t i = 0; i < width; ++i) values[i] = RoundToE4m3(values[i] / scale);
  return scale;
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
    const size_t size = static_cast<size_t>(RoundUp(rows, 2) * RoundUp(width, 4));
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
  const int64_t padded = RoundUp(width_, 4);
  uint16_t* to = tiles_.data() + row / 2 * padded * 2 + row % 2 * 4;
  for (int64_t k = 0; k < padded; k += 4, to += 8) {
    for (int64_t i = 0; i < 4; ++i) to[i] = k + i < width_ ? BFloat16::From(values[k + i]).bits : 0;
  }
}

PackedWeights::PackedWeights(GemmFormat format, int64_t outputs, int64_t width)
    : format_(format), outputs_(outputs), width_(width) {
  if (UsesTiles(format)) {
    narrow_ = std::make_unique<uint16_t[]>(padded_outputs() * RoundUp(width, 4));
  } else if (format == GemmFormat::kFloat) {
    wide_ = std::make_unique<float[]>(padded_outputs() * width);
  } else {
    narrow_ = std::make_unique<uint16_t[]>(padded_outputs() * width);
  }
  if (format == GemmFormat::kFp8) scales_.resize(padded_outputs(), 1.0f);
}

int64_t PackedWeights::padded_outputs() const {
  return RoundUp(outputs_, UsesTiles(format_) ? kTile : kPanel);
}

int64_t PackedWeights::Index(int64_t output, int64_t column) const {
  if (UsesTiles(format_)) {
    return (output / kTile * RoundUp(width_, 4) + column / 4 * 4) * kTile + output % kTile * 4 + column % 4;
  }
  return (output / kPanel * width_ + column) * kPanel + output % kPanel;
}

void PackedWeights::SetRow(int64_t output, float* values) {
  if (format_ == GemmFormat::kFp8) scales_[output] = QuantizeRow(values, width_);
  for (int64_t i = 0; i < width_; ++i) {
    if (format_ == GemmFormat::kFloat) {
      wide_[Index(output, i)] = values[i];
    } else {
      narrow_[Index(output, i)] = BFloat16::From(values[i]).bits;
    }
  }
}

void PackedWeights::GetRow(int64_t output, float* values) const {
  const float scale = format_ == GemmFormat::kFp8 ? scales_[output] : 1.0f;
  for (int64_t i = 0; i < width_; ++i) {
    const int64_t index = Index(output, i);
    const float value = format_ == GemmFormat::kFloat ? wide_[index] : BFloat16{narrow_[index]};
    values[i] = value * scale;
  }
}

void PackedGemm(const GemmRows& rows, const PackedWeights& weights, const float* bias, bool round_to_bf16,
                float* out, int64_t out_stride) {
  const int64_t columns = weights.padded_outputs(), work = rows.rows() * columns * weights.width() / 4;
  if (UsesTiles(weights.format())) {
    Bf16Product product{rows.tiles(),  weights.tiles(),  rows.rows(), RoundUp(weights.width(), 4) / 4,
                        rows.scales(), weights.scales(), bias,        round_to_bf16,
                        out,           out_stride};
#pragma omp parallel firstprivate(product) if (WorthThreads(work))
    for (int64_t begin = 0; begin < rows.rows(); begin += kBlockRows) {
      product.m = std::min(kBlockRows, rows.rows() - begin);
      product.a = rows.tiles() + begin * product.k4 * 4;
      product.row_scales = rows.scales() == nullptr ? nullptr : rows.scales() + begin;
      product.out = out + begin * out_stride;
#pragma omp for schedule(static) nowait
      for (int64_t tile = 0; tile < columns / kTile; ++tile) BfmmlaTile(product, tile);
    }
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
