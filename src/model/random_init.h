// New random weights, for training from scratch and for benchmarks.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace augur {

// As transformers begins: matrices and the embedding normal with deviation `initializer_range` of the
// configuration (0.02 where it has none), norms one, biases zero. A pure function of configuration, dtype and
// seed.
Model RandomModel(const ModelConfig& config, at::ScalarType dtype, at::Device device, uint64_t seed);

}  // namespace augur
