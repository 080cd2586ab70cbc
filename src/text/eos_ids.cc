#include <algorithm>

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

}  // namespace

std::vector<int32_t> ReadEosIds(const std::filesystem::path& directory, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const char* name : {"generation_config.json", "config.json", "tokenizer_config.json"}) {
    const std::filesystem::path file = directory / name;
    if (!std::filesystem::exists(file)) continue;
    const Json config = ParseJson(ReadFile(file), file.string());
    const auto add = [&](const Json& value) {
      if (!value.is_null()) ids.push_back(EosId(value, tokenizer, file));
    };
    if (config.contains("eos_token_id")) {
      const Json& given = config["eos_token_id"];
      if (given.is_array()) {
        for (const Json& id : given) add(id);
      } else {
        add(given);
      }
    }
    if (config.contains("eos_token")) {
      const Json& token = config["eos_token"];
      add(token.is_object() && token.contains("content") ? token["content"] : token);
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace augur
