// Models of known shapes with random weights, for benchmarks.
#pragma once

#include <string_view>

#include "model/model.h"

namespace augur {

// The configuration of "qwen3-4b" or "smollm2-135m"; throws Error at `where` for another name.
ModelConfig NamedShape(std::string_view name, std::string_view where);

// Normal weights made on the device itself, which is quick for billions of them; training starts from
// RandomModel.
Model NoiseModel(const ModelConfig& config, at::ScalarType dtype, at::Device device, uint64_t seed);

}  // namespace augur
