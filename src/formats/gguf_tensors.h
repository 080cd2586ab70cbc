// The tensors of a GGUF model under their Hugging Face names, dequantised while they are written.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "formats/gguf_config.h"
#include "formats/safetensors.h"

namespace augur {

// Called as values are written, with how many have been since the last call.
using ConvertProgress = std::function<void(uint64_t values)>;

// One source for every tensor the model needs, as `dtype` (F32, F16 or BF16). Throws an Error where a tensor
// is missing, has another shape than the metadata says, or has no place in the model; while writing F16,
// where a value is too large for it. The sources read from `content` and must not outlive it.
std::vector<TensorSource> GgufSources(const GgufContent& content, const GgufModel& model, DType dtype,
                                      const std::string& where, ConvertProgress progress);

}  // namespace augur
