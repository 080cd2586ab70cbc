// What a GGUF file says about its model, as a Hugging Face config.json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/dtype.h"
#include "formats/gguf_metadata.h"

namespace augur {

// The architectures `augur convert` knows; Hugging Face calls them by the same names.
enum class GgufArchitecture { kLlama, kQwen2, kQwen3 };

// The shape of a dense decoder, checked for consistency with the tensors that decide it.
struct GgufModel {
  GgufArchitecture architecture;
  int64_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab_size, context;
  double rms_eps, rope_theta;
  // Rope scaling as config.json writes it, or null.
  nlohmann::ordered_json rope_scaling;
  bool tied;            // no output.weight: the head shares the embedding
  bool attention_bias;  // llama and qwen3; qwen2 always has biases on q, k and v
  std::optional<int64_t> bos, pad;
  std::vector<int64_t> eos;  // the end-of-text token, then the end-of-turn token where it is another
};

GgufModel ReadGgufModel(const GgufContent& content, const GgufMetadata& metadata);

std::string ConfigJson(const GgufModel& model, DType dtype);
std::string GenerationConfigJson(const GgufModel& model);

}  // namespace augur
