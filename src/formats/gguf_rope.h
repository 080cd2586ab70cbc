// Rope scaling in GGUF, as the object config.json calls rope_scaling.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "formats/gguf_metadata.h"

namespace augur {

// Null where the model scales nothing. Linear and YaRN scaling stand in the metadata; Llama 3's stands only
// as the tensor rope_freqs.weight, one divisor per frequency, from which its parameters are recovered and
// checked.
nlohmann::ordered_json ReadRopeScaling(const GgufContent& content, const GgufMetadata& metadata,
                                       const std::string& prefix, int64_t head_dim, double theta);

}  // namespace augur
