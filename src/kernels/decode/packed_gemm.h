// Products of a few to a few hundred rows with weights packed beforehand: the linear layers of generation.
//
// bfloat16 products run on BFMMLA, AMX or AVX-512's products of pairs where the machine has them, elsewhere
// on float multiply-adds (simd/isa.h). The products of bfloat16 are exact in all; BFMMLA's sums round to odd
// rather than to nearest, those of the first three flush subnormals: errors of one unit in the last place of
// a float, far below bfloat16's own. Whatever the path, a row of the result depends on that row and the
// weights alone, bit for bit: not on the other rows, their number, or the threads.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/simd/aligned.h"
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
  // From a row that is a multiple of the kernels' row step.
  std::byte* At(int64_t row) const;
  const float* scales() const { return format_ == GemmFormat::kFp8 ? scales_.data() : nullptr; }

 private:
  GemmFormat format_;
  int64_t rows_ = 0, width_ = 0;
  AlignedBytes values_;        // as the kernels ask (tile_kernels.h)
  std::vector<float> scales_;  // fp8: [rows]
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
  const std::byte* tiles() const { return tiles_.data(); }
  const float* scales() const { return format_ == GemmFormat::kFp8 ? scales_.data() : nullptr; }

 private:
  PackedWeights(GemmFormat format, int64_t outputs, int64_t width, int64_t inner);
  // Calls f with the column of each of an output's weights and its index among all.
  template <typename F>
  void ForWeights(int64_t output, F f) const;

  GemmFormat format_ = GemmFormat::kFloat;
  int64_t outputs_ = 0, width_ = 0;
  int64_t inner_ = 0;   // not 0: tiles of gates and ups take turns
  AlignedBytes tiles_;  // of float or bfloat16 (tile_kernels.h)
  std::vector<float> scales_;
};

// out[r, o] = rows[r] · weights[o] + bias[o], `bias` [padded_outputs()] or null, `out_stride` at least
// padded_outputs() (columns beyond the outputs are scratch). In the 16- and 8-bit formats results are rounded
// to bfloat16 values where `round_to_bf16`.
void PackedGemm(const GemmRows& rows, const PackedWeights& weights, const float* bias, bool round_to_bf16,
                float* out, int64_t out_stride);

// to [rows, inner] = silu(gate) * up, where the product, rounded to bfloat16, holds gates and ups. Only for
// weights that fuse SwiGLU.
void PackedGemmSwiglu(const GemmRows& rows, const PackedWeights& weights, const float* bias, GemmRows* to);

}  // namespace augur
