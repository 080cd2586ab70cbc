// Reading tokenizer.json and the files next to it.
#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/run_directory.h"
#include "text/byte_level.h"
#include "text/nfc.h"
#include "text/tokenizer.h"

namespace augur {
namespace {

constexpr std::string_view kRemedy = "Augur reads byte-level BPE as Llama 3, Qwen2, Qwen3 and SmolLM2 use it";
constexpr std::string_view kBroken = "the file is damaged: fetch it again";

const Json& KeyOrNull(const Json& object, std::string_view key) {
  static const Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

// The parts that stand in a (nested) Sequence under `list_key`, or the one part itself; none for null.
std::vector<const Json*> Parts(const Json& spec, const char* list_key, std::string_view where) {
  std::vector<const Json*> parts, open;
  if (!spec.is_null()) open.push_back(&spec);
  while (!open.empty()) {
    const Json* next = open.back();
    open.pop_back();
    if (RequireString(*next, "type", where) != "Sequence") {
      parts.push_back(next);
      continue;
    }
    const Json& list = RequireKey(*next, list_key, where);
    if (!list.is_array()) throw Error(where, fmt::format("\"{}\" is not a list", list_key), kBroken);
    for (auto it = list.rbegin(); it != list.rend(); ++it) open.push_back(&*it);
  }
  return parts;
}

// A token beyond the embedding would be read from memory that is not the model's. What else config.json holds
// is the model's business.
void CheckFitsEmbedding(const Tokenizer& tokenizer, const std::filesystem::path& config) {
  if (!std::filesystem::exists(config)) return;
  const Json rows = KeyOrNull(ParseJson(ReadFile(config), config.string()), "vocab_size");
  if (!rows.is_number_unsigned() || rows.get<uint64_t>() >= tokenizer.vocab_size()) return;
  throw Error(
      config.parent_path().string(),
      fmt::format(
          "tokenizer.json has ids up to {}, but the embedding has {} rows (vocab_size in config.json)",
          tokenizer.vocab_size() - 1, rows.get<uint64_t>()),
      "fetch tokenizer and model of one version, or give the embedding more rows "
      "(transformers' resize_token_embeddings)");
}

}  // namespace

Tokenizer Tokenizer::FromDirectory(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer.json";
  if (!std::filesystem::is_directory(directory)) {
    throw Error(directory.string(), "not a directory", "give the directory of a Hugging Face model");
  }
  if (!std::filesystem::exists(path)) {
    RefuseRunDirectory(directory);
    throw Error(directory.string(), "has no tokenizer.json",
                "fetch it with the model, or save it with transformers' save_pretrained");
  }
  Tokenizer tokenizer = FromJson(ReadFile(path), path.string());
  CheckFitsEmbedding(tokenizer, directory / "config.json");
  return tokenizer;
}

Tokenizer Tokenizer::FromJson(std::string_view json, std::string_view where) {
  return Tokenizer(ParseJson(json, where), where);
}

Tokenizer::Tokenizer(const Json& spec, std::string_view where)
    : where_(where),
      model_(RequireKey(spec, "model", where), where),
      pre_tokenizer_(KeyOrNull(spec, "pre_tokenizer"), where),
      added_(ReadAddedTokens(KeyOrNull(spec, "added_tokens"), model_, where)) {
  ReadNormalizer(KeyOrNull(spec, "normalizer"));
  ReadDecoder(KeyOrNull(spec, "decoder"));
  Index();
  ReadPostProcessor(KeyOrNull(spec, "post_processor"));
  Encode("e\u0301");  // the tables of character classes are built now, not while the first text waits
}

void Tokenizer::ReadNormalizer(const Json& spec) {
  for (const Json* part : Parts(spec, "normalizers", where_)) {
    const std::string type = RequireString(*part, "type", where_);
    if (type != "NFC") throw Error(where_, fmt::format("normalizer {} is not supported", type), kRemedy);
    nfc_ = true;
  }
}

void Tokenizer::ReadDecoder(const Json& spec) const {
  const auto parts = Parts(spec, "decoders", where_);
  for (const Json* part : parts) {
    const std::string type = RequireString(*part, "type", where_);
    if (type != "ByteLevel") throw Error(where_, fmt::format("decoder {} is not supported", type), kRemedy);
  }
  if (parts.size() != 1) throw Error(where_, "the decoder is not one ByteLevel", kRemedy);
}

void Tokenizer::ReadPostProcessor(const Json& spec) {
  bool has_template = false;
  for (const Json* part : Parts(spec, "processors", where_)) {
    const std::string type = RequireString(*part, "type", where_);
    if (type == "ByteLevel") continue;  // moves offsets only
    if (type != "TemplateProcessing" || has_template) {
      throw Error(where_, fmt::format("post_processor {} is not supported", type), kRemedy);
    }
    has_template = true;
    ReadTemplate(*part);
  }
}

// {"single": [{"SpecialToken": {"id": "<bos>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<bos>":
// {"ids": [1]}}}
void Tokenizer::ReadTemplate(const Json& spec) {
  const Json& single = RequireKey(spec, "single", where_);
  const Json& tokens = RequireKey(spec, "special_tokens", where_);
  std::vector<int32_t>* into = &prefix_;
  for (const Json& piece : single) {
    if (piece.is_object() && piece.contains("Sequence")) {
      if (into == &suffix_) throw Error(where_, "the post_processor repeats the text", kRemedy);
      into = &suffix_;
      continue;
    }
    const std::string name = RequireString(RequireKey(piece, "SpecialToken", where_), "id", where_);
    for (const Json& id : RequireKey(RequireKey(tokens, name, where_), "ids", where_)) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= vocab_size() || !Has(id.get<int32_t>())) {
        throw Error(where_, fmt::format("the post_processor adds the id {}, which no token has", id.dump()),
                    kBroken);
      }
      into->push_back(id.get<int32_t>());
    }
  }
  if (into == &prefix_) throw Error(where_, "the post_processor leaves the text out", kRemedy);
}

void Tokenizer::Index() {
  size_t size = model_.size();
  for (const AddedToken& token : added_) size = std::max<size_t>(size, token.id + 1);
  decoded_.resize(size);
  kinds_.resize(size, kNoToken);
  // A token with a character outside the byte alphabet stands for its own text.
  const auto set = [this](size_t id, const std::string& token, Kind kind) {
    kinds_[id] = kind;
    if (!BytesFromByteLevel(token, &decoded_[id])) decoded_[id] = token;
  };
  for (size_t id = 0; id < model_.size(); ++id) {
    if (model_.Has(id)) set(id, model_.token(id), kPlain);
  }
  std::vector<AddedToken> as_given, normalized;
  std::vector<std::string> as_given_patterns, normalized_patterns;
  for (const AddedToken& token : added_) {
    set(token.id, token.content, token.special ? kSpecial : kPlain);
    (token.normalized ? normalized : as_given).push_back(token);
    if (token.normalized) {
      normalized_patterns.push_back(nfc_ ? ToNfc(token.content) : token.content);
    } else {
      as_given_patterns.push_back(token.content);
    }
  }
  in_text_ = std::make_unique<TokenFinder>(std::move(as_given), as_given_patterns);
  in_normalized_ = std::make_unique<TokenFinder>(std::move(normalized), normalized_patterns);
}

}  // namespace augur
