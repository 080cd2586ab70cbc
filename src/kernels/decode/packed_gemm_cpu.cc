#include <algorithm>
#include <cstring>

#include "base/round_up.h"
#include "kernels/decode/packed_gemm.h"
#include "kernels/decode/row_kernels.h"
#include "kernels/decode/tile_kernels.h"
#include "kernels/simd/parallel_work.h"
#include "kernels/thread_team.h"

namespace augur {
namespace {

// Activations of this many elements are worked on together: they stay in the second-level cache.
constexpr int64_t kBlockElements = 128 << 10;

const TileKernels& KernelsFor(GemmFormat format) {
  if (format == GemmFormat::kFloat) return AUGUR_LANES_CHOICE(kFloatTiles);
#if defined(__x86_64__)
  if (CurrentIsa() == Isa::kAmx) return kAmxTiles;
  if (CurrentIsa() == Isa::kAvx512Bf16) return kAvx512Bf16Tiles;
#elif defined(__aarch64__)
  if (CurrentIsa() == Isa::kBfmmla) return kBfmmlaTiles;
#endif
  return AUGUR_LANES_CHOICE(kBf16Tiles);
}

int64_t ElementBytes(bool narrow) { return narrow ? sizeof(uint16_t) : sizeof(float); }

int64_t RowBytes(const TileKernels& kernels, int64_t width) {
  return (RoundUp(width, kernels.width_step) + kernels.row_gap) * ElementBytes(kernels.narrow_rows);
}

}  // namespace

void GemmRows::Resize(int64_t rows, int64_t width) {
  rows_ = rows;
  width_ = width;
  const TileKernels& kernels = KernelsFor(format_);
  values_.Reserve(RoundUp(rows, kernels.row_step) * RowBytes(kernels, width) +
                  kernels.read_ahead * ElementBytes(kernels.narrow_rows));
  if (format_ == GemmFormat::kFp8 && scales_.size() < static_cast<size_t>(rows)) scales_.resize(rows);
}

std::byte* GemmRows::At(int64_t row) const {
  return values_.data() + row * RowBytes(KernelsFor(format_), width_);
}

void GemmRows::SetRow(int64_t row, float* values) {
  if (format_ == GemmFormat::kFp8) scales_[row] = QuantizeRow(values, width_);
  const TileKernels& kernels = KernelsFor(format_);
  kernels.set_row(values, width_, RoundUp(width_, kernels.width_step), row, values_.data());
}

PackedWeights::PackedWeights(GemmFormat format, int64_t outputs, int64_t width)
    : PackedWeights(format, outputs, width, 0) {}

PackedWeights PackedWeights::ForSwiglu(GemmFormat format, int64_t inner, int64_t width) {
  return PackedWeights(format, 2 * inner, width, format == GemmFormat::kBFloat16 ? inner : 0);
}

PackedWeights::PackedWeights(GemmFormat format, int64_t outputs, int64_t width, int64_t inner)
    : format_(format), outputs_(outputs), width_(width), inner_(inner) {
  const TileKernels& kernels = KernelsFor(format);
  tiles_.ReserveZeros((padded_outputs() * RoundUp(width, kernels.width_step) + kernels.read_ahead) *
                      ElementBytes(kernels.narrow_weights));
  if (format == GemmFormat::kFp8) scales_.resize(padded_outputs(), 1.0f);
}

int64_t PackedWeights::padded_outputs() const {
  const int64_t columns = KernelsFor(format_).columns;
  return inner_ > 0 ? 2 * RoundUp(inner_, columns) : RoundUp(outputs_, columns);
}

int64_t PackedWeights::Column(int64_t output) const {
  if (inner_ == 0) return output;
  const int64_t columns = KernelsFor(format_).columns;
  const int64_t up = output / inner_, i = output % inner_;
  return (i / columns * 2 + up) * columns + i % columns;
}

template <typename F>
void PackedWeights::ForWeights(int64_t output, F f) const {
  const TileKernels& kernels = KernelsFor(format_);
  const int64_t column = Column(output), together = kernels.neighbours, step = kernels.columns * together;
  const int64_t tile = column / kernels.columns * kernels.columns * RoundUp(width_, kernels.width_step);
  int64_t index = tile + column % kernels.columns * together;
  for (int64_t k = 0; k < width_; k += together, index += step) {
    const int64_t count = std::min(together, width_ - k);
    for (int64_t i = 0; i < count; ++i) f(k + i, index + i);
  }
}

void PackedWeights::SetRow(int64_t output, float* values) {
  if (format_ == GemmFormat::kFp8) scales_[output] = QuantizeRow(values, width_);
  if (format_ == GemmFormat::kFloat) {
    auto* to = reinterpret_cast<float*>(tiles_.data());
    ForWeights(output, [&](int64_t k, int64_t index) { to[index] = values[k]; });
  } else {
    const auto* from = reinterpret_cast<const uint16_t*>(values);
    auto* to = reinterpret_cast<uint16_t*>(tiles_.data());
    NarrowRow(values, width_);
    ForWeights(output,
               [&](int64_t k, int64_t index) { std::memcpy(to + index, from + k, sizeof(uint16_t)); });
  }
}

void PackedWeights::GetRow(int64_t output, float* values) const {
  const float scale = format_ == GemmFormat::kFp8 ? scales_[output] : 1.0f;
  const auto* wide = reinterpret_cast<const float*>(tiles_.data());
  const auto* narrow = reinterpret_cast<const uint16_t*>(tiles_.data());
  ForWeights(output, [&](int64_t k, int64_t index) {
    const float value = format_ == GemmFormat::kFloat ? wide[index] : BFloat16{narrow[index]};
    values[k] = value * scale;
  });
}

namespace {

// Into how many parts of the rows a product of `tiles` tiles falls, `least` or more, each at least `row_step`
// rows. All threads wait for the one that has most to do, so more parts are taken where they share it out
// more evenly; each part costs another read of the weights.
int64_t RowParts(int64_t rows, int64_t row_step, int64_t least, int64_t tiles, int64_t threads) {
  constexpr double kCostOfPart = 0.08;
  const int64_t most = std::min(least + 3, (rows + row_step - 1) / row_step);
  int64_t best = least;
  double best_cost = 0;
  for (int64_t parts = least; parts <= most; ++parts) {
    const int64_t rounds = (parts * tiles + threads - 1) / threads;
    const auto share = static_cast<double>(rounds) / static_cast<double>(parts);
    const double cost = share * (1 + kCostOfPart * static_cast<double>(parts - least));
    if (parts == least || cost < best_cost) {
      best = parts;
      best_cost = cost;
    }
  }
  return best;
}

// Calls work(product, first row, tile) for parts of the rows and tiles of the columns, shared by the threads.
template <typename Work>
void ForTiles(const GemmRows& rows, const PackedWeights& weights, const float* bias, int64_t tiles,
              const Work& work) {
  const TileKernels& kernels = KernelsFor(weights.format());
  const int64_t count = rows.rows();
  if (count == 0) return;
  const bool worth = WorthThreads(count * weights.outputs() * weights.width() / 4);
  const int64_t most = std::max<int64_t>(kBlockElements / weights.width(), 32);
  const int64_t wanted =
      RowParts(count, kernels.row_step, (count + most - 1) / most, tiles, worth ? TeamThreads() : 1);
  const int64_t part = RoundUp((count + wanted - 1) / wanted, kernels.row_step);
  const int64_t parts = (count + part - 1) / part;
  TileProduct product{};
  product.weights = weights.tiles();
  product.width = RoundUp(weights.width(), kernels.width_step);
  product.column_scales = weights.scales();
  product.bias = bias;
  ParallelFor(parts * tiles, worth, [&](int64_t i) {
    const int64_t begin = i / tiles * part;
    TileProduct mine = product;
    mine.m = std::min(part, count - begin);
    mine.rows = rows.At(begin);
    mine.row_scales = rows.scales() == nullptr ? nullptr : rows.scales() + begin;
    work(mine, begin, i % tiles);
  });
}

}  // namespace

void PackedGemmSwiglu(const GemmRows& rows, const PackedWeights& weights, const float* bias, GemmRows* to) {
  const TileKernels& kernels = KernelsFor(weights.format());
  to->Resize(rows.rows(), weights.inner());
  ForTiles(rows, weights, bias, weights.padded_outputs() / kernels.columns / 2,
           [&](TileProduct product, int64_t begin, int64_t pair) {
             product.inner = to->At(begin);
             product.inner_width = RoundUp(weights.inner(), kernels.width_step);
             kernels.swiglu(product, pair, pair + 1);
           });
}

void PackedGemm(const GemmRows& rows, const PackedWeights& weights, const float* bias, bool round_to_bf16,
                float* out, int64_t out_stride) {
  const TileKernels& kernels = KernelsFor(weights.format());
  ForTiles(rows, weights, bias, weights.padded_outputs() / kernels.columns,
           [&](TileProduct product, int64_t begin, int64_t tile) {
             product.round_to_bf16 = round_to_bf16 && weights.format() != GemmFormat::kFloat;
             product.out = out + begin * out_stride;
             product.out_stride = out_stride;
             kernels.multiply(product, tile, tile + 1);
           });
}

}  // namespace augur
