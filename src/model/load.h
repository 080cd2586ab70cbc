// Configuration and weights from a Hugging Face directory.
#pragma once

#include <filesystem>
#include <string_view>

#include "model/model.h"

namespace augur {

// "fp32" or "bf16"; anything else is an Error at `where`.
at::ScalarType ParsePrecision(std::string_view name, std::string_view where);
// "cpu", "cuda" or "cuda:N", which becomes the calling thread's GPU; an Error where this machine or build has
// no such device. "cuda" is the thread's GPU as it is: of several ranks each has its own, and N is refused.
at::Device UseDevice(std::string_view name, std::string_view where);
// Gives a host its own GPU back, where a call of UseDevice chose another.
void RestoreDevice();

// config.json of the directory, or of the base that an adapter's directory names.
ModelConfig ReadModelConfig(const std::filesystem::path& model);

// Reads config.json and the safetensors file or shards. The bytes go from the memory map straight to their
// place, converted on the way from bfloat16, float16 or float32; no second copy of the weights is held.
// Of an adapter's directory (model/adapter_files.h) the base is read, and the adapter merged into it.
// Throws Error naming the directory and the tensor: missing, unexpected, of another shape than the
// configuration says, of another kind than floating point, NaN or infinite, or a tied head that differs from
// the embedding.
Model LoadModel(const std::filesystem::path& model_path, at::ScalarType dtype, at::Device device);

}  // namespace augur
