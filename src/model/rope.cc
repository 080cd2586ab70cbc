#include "model/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <numbers>

namespace augur {
namespace {

at::Tensor ScaleLikeLlama3(const at::Tensor& frequencies, const RopeConfig& rope) {
  const double low = rope.low_freq_factor, high = rope.high_freq_factor, old = rope.original_max_positions;
  const at::Tensor wavelength = at::reciprocal(frequencies) * (2.0 * std::numbers::pi);
  const at::Tensor is_long = wavelength > old / low, is_short = wavelength < old / high;
  const at::Tensor scaled = at::where(is_long, frequencies / rope.factor, frequencies);
  const at::Tensor smooth = (at::reciprocal(wavelength) * old - low) / (high - low);
  const at::Tensor between = (1 - smooth) * scaled / rope.factor + smooth * scaled;
  return at::where(is_short.logical_or(is_long), scaled, between);
}

}  // namespace

at::Tensor InverseFrequencies(const ModelConfig& config) {
  const at::Tensor exponent =
      at::arange(0, config.head_dim, 2, at::kLong).to(at::kFloat) / static_cast<double>(config.head_dim);
  const at::Tensor frequencies = at::reciprocal(at::pow(config.rope.theta, exponent));
  return config.rope.llama3 ? ScaleLikeLlama3(frequencies, config.rope) : frequencies;
}

RotationTable MakeRotationTable(const at::Tensor& inverse_frequencies, int64_t length) {
  const at::Tensor positions = at::arange(length, inverse_frequencies.options());
  const at::Tensor angles = at::outer(positions, inverse_frequencies);
  return {angles.cos(), angles.sin()};
}

RotationTable WithoutRotation(const RotationTable& table) {
  return {at::ones_like(table.cos), at::zeros_like(table.sin)};
}

}  // namespace augur
