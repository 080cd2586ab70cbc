// GGUF file to Hugging Face model directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "formats/dtype.h"

namespace augur {

struct ConvertOptions {
  // What the weights are written as: F32 keeps the dequantised values exactly, BF16 and F16 round them.
  DType dtype = DType::kF32;
  // Replace a model directory that is already there.
  bool force = false;
  // Write config and weights only.
  bool no_tokenizer = false;
  // How the tokenizer splits text, where the file does not say.
  std::optional<std::string> pre;
  // Called now and then with the values written so far and in all.
  std::function<void(uint64_t done, uint64_t total)> progress = [](uint64_t, uint64_t) {};
};

struct ConvertResult {
  size_t tensors;
  uint64_t values;
  bool has_tokenizer;
};

// Writes config.json, generation_config.json, model.safetensors, tokenizer.json and tokenizer_config.json.
// The directory appears complete or not at all: it is built next to `out` and renamed. Throws an Error where
// `out` is in the way, the disk is too full or the model is not one that can be converted.
ConvertResult ConvertGguf(const std::filesystem::path& gguf, const std::filesystem::path& out,
                          const ConvertOptions& options);

}  // namespace augur
