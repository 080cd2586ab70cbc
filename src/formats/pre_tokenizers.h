// The sections of tokenizer.json that a GGUF file reduces to a name.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

namespace augur {

// The published tokenizer.json of the model family, less its vocabulary. Texts are JSON.
struct PreTokenizer {
  std::string_view name;  // tokenizer.ggml.pre
  std::string_view normalizer;
  std::string_view pre_tokenizer;
  std::string_view post_processor;
  std::string_view decoder;
  std::string_view affix;  // continuing_subword_prefix and end_of_word_suffix
  bool ignore_merges;
  bool adds_bos;  // unless the file says otherwise
};

// SmolLM2, Qwen2 to Qwen3, Llama 3.
std::span<const PreTokenizer> KnownPreTokenizers();

}  // namespace augur
