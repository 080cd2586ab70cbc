// Whether training can fit into memory at all, before anything is loaded; and what to do when it does not.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "config/config.h"
#include "model/config.h"

namespace augur {

// Throws Error where weights, master weights, states and gradients alone need more than the machine has. Of a
// GPU nothing is asked: it says so by itself, and at once.
void RequireTrainingMemory(const std::string& path, const ModelConfig& model, Precision precision,
                           const OptimizerFields& optimizer, at::Device device);

// For updates that ran out of memory; `section` is the optimizer's, "train" or "sft".
std::string UpdateMemoryRemedy(const std::string& section, const OptimizerFields& optimizer);

}  // namespace augur
