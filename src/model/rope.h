// Rotation angles by position.
#pragma once

#include <ATen/core/Tensor.h>

#include "family/config.h"

namespace augur {

// [head_dim / 2] float32: the angle per position of each pair. Every step is rounded as in transformers: at
// position 100,000 a difference in the last bit would turn a pair by a hundredth.
at::Tensor InverseFrequencies(const ModelConfig& config);

// Cosines and sines [length, head_dim / 2] float32 of positions 0 .. length - 1.
struct RotationTable {
  at::Tensor cos;
  at::Tensor sin;
};
RotationTable MakeRotationTable(const at::Tensor& inverse_frequencies, int64_t length);

// One of the same size for layers that rotate nothing.
RotationTable WithoutRotation(const RotationTable& table);

}  // namespace augur
