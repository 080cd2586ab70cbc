// Models of known shapes with random weights, for benchmarks.
#pragma once

#include <span>
#include <string_view>

#include "model/model.h"

namespace augur {

// Published models, "smollm2-135m" to "qwen3-30b-a3b".
std::span<const std::string_view> ShapeNames();

// The configuration of one of them; throws Error at `where` for another name.
ModelConfig NamedShape(std::string_view name, std::string_view where);

// Normal weights made on the device itself, which is quick for billions of them; training starts from
// RandomModel.
Model NoiseModel(const ModelConfig& config, at::ScalarType dtype, at::Device device, uint64_t seed);

}  // namespace augur
