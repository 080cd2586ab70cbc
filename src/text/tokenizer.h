// Text to token ids and back, equal to the `tokenizers` package: byte-level BPE as Llama 3, Qwen2, Qwen3 and
// SmolLM2 use it, straight from tokenizer.json.
//
//   const Tokenizer tokenizer = Tokenizer::FromDirectory("models/Qwen3-0.6B");
//   std::vector<int32_t> ids = tokenizer.Encode("Hello");
//   std::string text = tokenizer.Decode(ids);
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"

namespace augur {

class Tokenizer {
 public:
  // Reads tokenizer.json of a Hugging Face directory. Throws Error naming the file and the part that is
  // damaged or not supported, and where the tokenizer has ids for which the embedding, by the vocab_size of a
  // config.json next to it, has no row.
  static Tokenizer FromDirectory(const std::filesystem::path& directory);

  // Reads the text of a tokenizer.json; `where` opens error messages. Settings for truncation and padding are
  // passed over, as in transformers.
  static Tokenizer FromJson(std::string_view json, std::string_view where);

  // The ids of `text`. Special tokens written in the text are recognised; none are added. Throws Error when
  // the text is not valid UTF-8. Safe to call from several threads, as are all const members.
  std::vector<int32_t> Encode(std::string_view text) const;

  // The same with the special tokens of the post-processor around it (Llama 3 begins with <|begin_of_text|>).
  std::vector<int32_t> EncodeWithSpecialTokens(std::string_view text) const;

  // The text of `ids`. Bytes that form no character become U+FFFD. Throws Error for an id without a token.
  std::string Decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes one token stands for, possibly part of a character. Throws Error for an id without a token.
  std::string_view TokenBytes(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  bool Has(int32_t id) const;

  // The id of a token as written in the file, e.g. "<|im_end|>".
  std::optional<int32_t> Find(std::string_view token) const;

  // One more than the largest id; the embedding of a model must have at least as many rows.
  size_t vocab_size() const { return decoded_.size(); }

 private:
  enum Kind : uint8_t { kNoToken, kPlain, kSpecial };

  Tokenizer(const Json& spec, std::string_view where);
  void ReadNormalizer(const Json& spec);
  void ReadDecoder(const Json& spec) const;
  void ReadPostProcessor(const Json& spec);
  void ReadTemplate(const Json& spec);
  void Index();
  void EncodeNormalized(std::string_view text, Words* words, std::vector<int32_t>* ids) const;

  std::string where_;
  Bpe model_;
  PreTokenizer pre_tokenizer_;
  bool nfc_ = false;
  std::vector<AddedToken> added_;
  std::unique_ptr<TokenFinder> in_text_;        // added tokens sought before normalisation
  std::unique_ptr<TokenFinder> in_normalized_;  // and after it
  std::vector<std::string> decoded_;            // bytes by id
  std::vector<Kind> kinds_;                     // by id
  std::vector<int32_t> prefix_, suffix_;        // of the post-processor
};

// The ids that end a response, in rising order: eos_token_id of generation_config.json and config.json,
// eos_token of tokenizer_config.json, as far as the files exist. Throws Error when one is not in the
// vocabulary.
std::vector<int32_t> ReadEosIds(const std::filesystem::path& directory, const Tokenizer& tokenizer);

// The one of them that a text without a chat format is ended with: eos_token of tokenizer_config.json, or
// else the first of eos_token_id, as transformers takes them. Nothing where no file names one.
std::optional<int32_t> ReadEosToken(const std::filesystem::path& directory, const Tokenizer& tokenizer);

// Turns ids into text as they arrive. What Add returns is always whole characters; the bytes of one that is
// not complete wait for the next id. All that Add and Finish return, joined, equals Tokenizer::Decode.
class IncrementalDecoder {
 public:
  // `tokenizer` must outlive this object.
  explicit IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  std::string Add(int32_t id);
  // What is left at the end: nothing, or U+FFFD for a character that never became complete.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string waiting_;
};

}  // namespace augur
