// Reading and checking the `model` of tokenizer.json.
#include "base/error.h"
#include "text/bpe.h"

namespace augur {
namespace {

constexpr std::string_view kBpeRemedy =
    "Augur reads byte-level BPE as Llama 3, Qwen2, Qwen3 and SmolLM2 use it";
constexpr std::string_view kBrokenBpe = "the file is damaged: fetch it again";

// More than any model has; keeps a damaged id from claiming memory.
constexpr int64_t kMostIds = 1 << 22;

bool IsSet(const Json& spec, std::string_view key) {
  const auto found = spec.find(key);
  if (found == spec.end() || found->is_null()) return false;
  if (found->is_boolean()) return found->get<bool>();
  if (found->is_number()) return found->get<double>() != 0;
  return !(found->is_string() && found->get_ref<const std::string&>().empty());
}

// The two tokens of a merge in either form; false if it has neither.
bool SplitMerge(const Json& merge, std::string_view* left, std::string_view* right) {
  if (merge.is_array()) {
    if (merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) return false;
    *left = merge[0].get_ref<const std::string&>();
    *right = merge[1].get_ref<const std::string&>();
    return true;
  }
  if (!merge.is_string()) return false;
  const std::string_view text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) return false;
  *left = text.substr(0, space);
  *right = text.substr(space + 1);
  return true;
}

}  // namespace

Bpe::Bpe(const Json& spec, std::string_view where) {
  const Json& vocab = RequireKey(spec, "vocab", where);
  if (spec.contains("type") && spec["type"] != "BPE") {
    throw Error(where, fmt::format("a model of type {} is not supported", spec["type"].dump()), kBpeRemedy);
  }
  for (const char* option : {"dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (IsSet(spec, option)) {
      throw Error(where, fmt::format("the model's \"{}\" is not supported", option), kBpeRemedy);
    }
  }
  fuse_unknown_ = IsSet(spec, "fuse_unk");
  ignore_merges_ = IsSet(spec, "ignore_merges");
  ReadVocab(vocab, where);
  if (IsSet(spec, "unk_token")) {
    const std::string name = RequireString(spec, "unk_token", where);
    unknown_ = Find(name);
    if (unknown_ == kAbsent) {
      throw Error(where, fmt::format("the unknown token \"{}\" is not in the vocabulary", name), kBrokenBpe);
    }
  }
  ReadMerges(RequireKey(spec, "merges", where), where);
  Index();
}

void Bpe::ReadVocab(const Json& vocab, std::string_view where) {
  if (!vocab.is_object()) throw Error(where, "\"vocab\" is not an object of tokens and ids", kBrokenBpe);
  int64_t largest = -1;
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() >= kMostIds) {
      throw Error(where,
                  fmt::format("token \"{}\" has the id {}, not a number from 0 to {}", token, id.dump(),
                              kMostIds - 1),
                  kBrokenBpe);
    }
    largest = std::max(largest, id.get<int64_t>());
  }
  count_ = vocab.size();
  tokens_.resize(largest + 1);
  used_.resize(largest + 1);
  by_name_ = std::make_unique<StringMap>(count_);
  for (const auto& [token, value] : vocab.items()) {
    const auto id = value.get<uint32_t>();
    if (used_[id]) {
      throw Error(where, fmt::format("tokens \"{}\" and \"{}\" have the same id {}", tokens_[id], token, id),
                  kBrokenBpe);
    }
    used_[id] = true;
    tokens_[id] = token;
    by_name_->Add(tokens_[id], id);
  }
}

void Bpe::ReadMerges(const Json& merges, std::string_view where) {
  if (!merges.is_array()) throw Error(where, "\"merges\" is not a list", kBrokenBpe);
  merges_ = PairMap(merges.size());
  std::string joined;
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    if (merges[rank].is_string() && merges[rank].get_ref<const std::string&>().starts_with("#version"))
      continue;
    std::string_view left, right;
    if (!SplitMerge(merges[rank], &left, &right)) {
      throw Error(where, fmt::format("merge {} is {}, not two tokens", rank, merges[rank].dump()),
                  kBrokenBpe);
    }
    const auto require = [&](std::string_view token) {
      const uint32_t id = Find(token);
      if (id == kAbsent) {
        throw Error(
            where,
            fmt::format("merge {} (\"{}\" + \"{}\") names the token \"{}\", which is not in the vocabulary",
                        rank, left, right, token),
            kBrokenBpe);
      }
      return id;
    };
    joined.assign(left).append(right);
    const uint32_t a = require(left), b = require(right);
    merges_.Set(a, b, {rank, require(joined)});
  }
}

}  // namespace augur
