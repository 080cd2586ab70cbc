#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "text/tokenizer.h"

namespace augur {
namespace {

// `value` is an id or the text of a token.
int32_t EosId(const Json& value, const Tokenizer& tokenizer, const std::filesystem::path& file) {
  std::optional<int32_t> id;
  if (value.is_string()) id = tokenizer.Find(value.get_ref<const std::string&>());
  if (value.is_number_unsigned() && value.get<uint64_t>() < tokenizer.vocab_size()) id = value.get<int32_t>();
  if (!id || !tokenizer.Has(*id)) {
    throw Error(file.string(),
                fmt::format("the end-of-sequence token {} is not in the vocabulary", value.dump()),
                "correct eos_token_id or eos_token");
  }
  return *id;
}

// What the file says under `key`, in its order.
std::vector<int32_t> IdsUnder(const char* key, const std::filesystem::path& file,
                              const Tokenizer& tokenizer) {
  if (!std::filesystem::exists(file)) return {};
  const Json config = ParseJson(ReadFile(file), file.string());
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return {};
  std::vector<int32_t> ids;
  if (found->is_array()) {
    for (const Json& id : *found) {
      if (!id.is_null()) ids.push_back(EosId(id, tokenizer, file));
    }
  } else {
    const bool described = found->is_object() && found->contains("content");
    ids.push_back(EosId(described ? (*found)["content"] : *found, tokenizer, file));
  }
  return ids;
}

// In the order of precedence.
std::vector<int32_t> AllIds(const std::filesystem::path& directory, const Tokenizer& tokenizer) {
  std::vector<int32_t> all;
  for (const auto& [file, key] : {std::pair("tokenizer_config.json", "eos_token"),
                                  {"generation_config.json", "eos_token_id"},
                                  {"config.json", "eos_token_id"}}) {
    for (const int32_t id : IdsUnder(key, directory / file, tokenizer)) all.push_back(id);
  }
  return all;
}

}  // namespace

std::vector<int32_t> ReadEosIds(const std::filesystem::path& directory, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = AllIds(directory, tokenizer);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::optional<int32_t> ReadEosToken(const std::filesystem::path& directory, const Tokenizer& tokenizer) {
  const std::vector<int32_t> ids = AllIds(directory, tokenizer);
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

}  // namespace augur
