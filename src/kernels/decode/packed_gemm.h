// Products of a few to a few hundred rows with weights packed beforehand: the linear layers of generation.
//
// On ARM with the bf16 extension bfloat16 products run on BFMMLA, elsewhere on float multiply-adds over
// panels of 16 columns. BFMMLA's products are exact; each of its sums rounds to odd rather than to nearest
// and flushes subnormals, an error of one unit in the last place of a float, far below bfloat16's own.
// Whatever the path, a row of the result depends on that row and the weights alone, bit for bit: not on the
// other rows, their number, or the threads.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/simd/element.h"

namespace augur {

enum class GemmFormat {
  kFloat,
  kBFloat16,
  // e4m3 values, scaled per row of activations and per row of weights (output channel). Held as bfloat16,
  // which contains them, and multiplied as such: the products are exact.
  kFp8,
};

// Activations [rows, width], in the layout the product reads.
class GemmRows {
 public:
  explicit GemmRows(GemmFormat format) : format_(format) {}

  // Makes room for this shape; contents are undefined until set.
  void Resize(int64_t rows, int64_t width);
  // Rounds a row to the format. `values` is scratch afterwards.
  void SetRow(int64_t row, float* values);

  GemmFormat format() const { return format_; }
  int64_t rows() const { return rows_; }
  const uint16_t* tiles() const { return tiles_.data(); }
  uint16_t* tiles() { return tiles_.data(); }
  const float* values() const { return values_.data(); }
  const float* scales() const { return format_ == GemmFormat::kFp8 ? scales_.data() : nullptr; }

 private:
  GemmFormat format_;
  int64_t rows_ = 0, width_ = 0;
  std::vector<uint16_t> tiles_;  // BFMMLA: [rows / 8][width / 4][8][4]
  std::vector<float> values_;    // otherwise: [rows, width]
  std::vector<float> scales_;    // fp8: [rows]
};

// Weights [outputs, width].
class PackedWeights {
 public:
  PackedWeights() = default;
  PackedWeights(GemmFormat format, int64_t outputs, int64_t width);
  // Weights [2 * inner, width] of a SwiGLU, gates before ups: for PackedGemmSwiglu where fuses_swiglu(), for
  // PackedGemm otherwise.
  static PackedWeights ForSwiglu(GemmFormat format, int64_t inner, int64_t width);

  // Rounds the weights of one output to the format. `values` is scratch afterwards.
  void SetRow(int64_t output, float* values);
  void GetRow(int64_t output, float* values) const;

  GemmFormat format() const { return format_; }
  int64_t outputs() const { return outputs_; }
  int64_t width() const { return width_; }
  // Outputs rounded up to whole tiles: the least stride of a product.
  int64_t padded_outputs() const;
  bool fuses_swiglu() const { return inner_ > 0; }
  int64_t inner() const { return inner_; }
  // Where an output stands among the padded ones, and its bias too.
  int64_t Column(int64_t output) const;
  const uint16_t* tiles() const { return narrow_.get(); }
  const float* panels() const { return wide_.get(); }
  const float* scales() const { return format_ == GemmFormat::kFp8 ? scales_.data() : nullptr; }

 private:
  PackedWeights(GemmFormat format, int64_t outputs, int64_t width, int64_t inner);
  int64_t FirstIndex(int64_t output) const;  // of an output's weights

  GemmFormat format_ = GemmFormat::kFloat;
  int64_t outputs_ = 0, width_ = 0;
  int64_t inner_ = 0;  // not 0: tiles of gates and ups take turns
  std::unique_ptr<uint16_t[]>
      narrow_;                     // BFMMLA: [outputs / 12][width / 4][12][4]; else [outputs / 16][width][16]
  std::unique_ptr<float[]> wide_;  // [outputs / 16][width][16]
  std::vector<float> scales_;
};

// out[r, o] = rows[r] · weights[o] + bias[o], `out_stride` at least padded_outputs() (columns beyond the
// outputs are scratch). In the 16- and 8-bit formats results are rounded to bfloat16 values where
// `round_to_bf16`.
void PackedGemm(const GemmRows& rows, const PackedWeights& weights, const float* bias, bool round_to_bf16,
                float* out, int64_t out_stride);

// to [rows, inner] = silu(gate) * up, where the product, rounded to bfloat16, holds gates and ups. Only for
// weights that fuse SwiGLU.
void PackedGemmSwiglu(const GemmRows& rows, const PackedWeights& weights, const float* bias, GemmRows* to);

// Whether bfloat16 products run on BFMMLA on this machine.
bool HasBf16MatrixInstructions();

}  // namespace augur
