// The byte-level BPE tokenizer inside a GGUF file, as the files Hugging Face software reads.
#pragma once

#include <optional>
#include <string>

#include "formats/gguf_config.h"

namespace augur {

struct GgufTokenizerFiles {
  std::string tokenizer_json;         // vocabulary, merges, added tokens and how text is split
  std::string tokenizer_config_json;  // special tokens and chat template
};

// Nothing where the file holds no tokenizer. GGUF names the way text is split (tokenizer.ggml.pre) and leaves
// the rest to the reader; `pre` overrides that name. Throws an Error where the tokenizer is not byte-level
// BPE, its splitting is unknown, a token or merge is malformed, or there are more tokens than rows in the
// embedding.
std::optional<GgufTokenizerFiles> ReadGgufTokenizer(const GgufMetadata& metadata, const GgufModel& model,
                                                    const std::optional<std::string>& pre);

}  // namespace augur
