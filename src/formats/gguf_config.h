// What a GGUF file says about its model, as a Hugging Face config.json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "family/config.h"
#include "formats/dtype.h"
#include "formats/gguf_metadata.h"

namespace augur {

struct GgufModel {
  const FamilyTraits* family;
  ModelConfig config;           // as Augur reads what is converted, rope scaling apart
  nlohmann::ordered_json json;  // config.json, but for the dtype
  std::optional<int64_t> bos, pad;
  std::vector<int64_t> eos;  // the end-of-text token, then the end-of-turn token where it is another
};

// The families that can be converted (family/family.cc).
std::vector<std::string_view> GgufFamilies();

// Throws an Error where the architecture is none of theirs, or where metadata are missing, contradictory or
// of what such a model cannot express.
GgufModel ReadGgufModel(const GgufContent& content, const GgufMetadata& metadata);

std::string ConfigJson(const GgufModel& model, DType dtype);
std::string GenerationConfigJson(const GgufModel& model);

}  // namespace augur
