#include "formats/gguf_tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "base/utf8.h"
#include "formats/pre_tokenizers.h"

namespace augur {
namespace {

using OrderedJson = nlohmann::ordered_json;

// tokenizer.ggml.token_type; the other kinds are ordinary entries of the vocabulary.
enum TokenKind : int64_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int64_t> kinds;
  std::vector<std::string> merges;
  // Ids below stand in the model's vocabulary; those from here on are added tokens alone.
  size_t base_size = 0;

  bool IsAdded(size_t id) const { return kinds[id] == kControl || kinds[id] == kUserDefined; }
};

Error Fault(const GgufMetadata& metadata, std::string_view what) {
  return Error(metadata.where(), what, "convert the original model again, or use --no-tokenizer");
}

// Names of pre-tokenizers that old files or other converters write for the same thing.
std::string Canonical(const std::string& name) {
  return name == "llama3" || name == "llama-v3" ? "llama-bpe" : name;
}

const PreTokenizer& ChoosePreTokenizer(const GgufMetadata& metadata, const GgufModel& model,
                                       const std::optional<std::string>& pre) {
  std::string name = Canonical(pre ? *pre : metadata.String("tokenizer.ggml.pre").value_or("default"));
  if (name == "default" && !model.family->gguf_pre.empty()) name = model.family->gguf_pre;  // an old file
  std::vector<std::string_view> names;
  for (const PreTokenizer& known : KnownPreTokenizers()) {
    if (known.name == name) return known;
    names.push_back(known.name);
  }
  throw Error(
      metadata.where(),
      name == "default"
          ? "does not say how its tokenizer splits text"
          : fmt::format("the tokenizer splits text the way {}, which Augur does not know", Quoted(name)),
      fmt::format("name one with --pre ({}) or use --no-tokenizer", fmt::join(names, ", ")));
}

void CheckMerges(const Vocabulary& v, const GgufMetadata& metadata) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    if (const auto [place, inserted] = ids.emplace(v.tokens[id], id); !inserted) {
      throw Fault(metadata,
                  fmt::format("token {} has two ids, {} and {}", Quoted(v.tokens[id]), place->second, id));
    }
  }
  const auto absent = [&](std::string_view token) {
    const auto found = ids.find(token);
    return found == ids.end() || found->second >= v.base_size;
  };
  for (size_t i = 0; i < v.merges.size(); ++i) {
    const std::string_view merge = v.merges[i];
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos) {
      throw Fault(metadata, fmt::format("merge {} is {}, not two tokens", i, Quoted(merge)));
    }
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    for (const std::string& token :
         {std::string(left), std::string(right), std::string(left) + std::string(right)}) {
      if (!absent(token)) continue;
      throw Fault(metadata, fmt::format("merge {} ({}) names {}, which is not in the vocabulary", i,
                                        Quoted(merge), Quoted(token)));
    }
  }
}

// The model's vocabulary ends with the last ordinary token; behind it stand added tokens, and unused rows
// that only fill up the embedding.
void DivideVocabulary(Vocabulary* v) {
  while (!v->kinds.empty() && v->kinds.back() == kUnused) v->kinds.pop_back();
  v->tokens.resize(v->kinds.size());
  v->base_size = v->tokens.size();
  while (v->base_size > 0 && v->IsAdded(v->base_size - 1)) --v->base_size;
}

Vocabulary ReadVocabulary(const GgufMetadata& metadata, const GgufModel& model) {
  Vocabulary v;
  v.tokens = metadata.Strings("tokenizer.ggml.tokens").value_or(std::vector<std::string>());
  v.kinds =
      metadata.Integers("tokenizer.ggml.token_type").value_or(std::vector<int64_t>(v.tokens.size(), kNormal));
  v.merges = metadata.Strings("tokenizer.ggml.merges").value_or(std::vector<std::string>());
  if (v.tokens.empty()) throw Fault(metadata, "the tokenizer has no tokens");
  if (v.kinds.size() != v.tokens.size()) {
    throw Fault(metadata, fmt::format("{} tokens but {} token types", v.tokens.size(), v.kinds.size()));
  }
  if (v.tokens.size() > static_cast<size_t>(model.config.vocab_size)) {
    throw Fault(metadata, fmt::format("{} tokens but an embedding of {} rows", v.tokens.size(),
                                      model.config.vocab_size));
  }
  DivideVocabulary(&v);
  CheckMerges(v, metadata);
  return v;
}

OrderedJson AddedToken(const Vocabulary& v, size_t id) {
  return {{"content", v.tokens[id]}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false},         {"normalized", false},  {"special", v.kinds[id] == kControl}};
}

// Puts the begin-of-text token before every text.
OrderedJson BosTemplate(const std::string& bos, int64_t id) {
  const auto special = [&](int type) {
    return OrderedJson{{"SpecialToken", {{"id", bos}, {"type_id", type}}}};
  };
  const auto sequence = [](const char* name, int type) {
    return OrderedJson{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  return {{"type", "TemplateProcessing"},
          {"single", OrderedJson::array({special(0), sequence("A", 0)})},
          {"pair", OrderedJson::array({special(0), sequence("A", 0), special(1), sequence("B", 1)})},
          {"special_tokens", {{bos, {{"id", bos}, {"ids", {id}}, {"tokens", {bos}}}}}}};
}

OrderedJson PostProcessor(const GgufMetadata& metadata, const GgufModel& model, const PreTokenizer& pre,
                          const Vocabulary& v) {
  OrderedJson own = OrderedJson::parse(pre.post_processor);
  if (!metadata.Bool("tokenizer.ggml.add_bos_token").value_or(pre.adds_bos) || !model.bos) return own;
  if (static_cast<size_t>(*model.bos) >= v.tokens.size())
    throw Fault(metadata, "the begin-of-text token has no text");
  OrderedJson bos = BosTemplate(v.tokens[static_cast<size_t>(*model.bos)], *model.bos);
  if (own.is_null()) return bos;
  return {{"type", "Sequence"}, {"processors", OrderedJson::array({std::move(own), std::move(bos)})}};
}

OrderedJson BpeModel(const Vocabulary& v, const PreTokenizer& pre) {
  // An ordered object is a vector of pairs; appending avoids its linear search for each of 150,000 keys.
  OrderedJson::object_t vocabulary;
  vocabulary.reserve(v.base_size);
  for (size_t id = 0; id < v.base_size; ++id) vocabulary.push_back({v.tokens[id], id});
  const OrderedJson affix = OrderedJson::parse(pre.affix);
  OrderedJson model = {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", affix},
                       {"end_of_word_suffix", affix},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", pre.ignore_merges}};
  model["vocab"] = std::move(vocabulary);
  model["merges"] = v.merges;
  return model;
}

std::string TokenizerJson(const GgufMetadata& metadata, const GgufModel& model, const PreTokenizer& pre,
                          const Vocabulary& v) {
  OrderedJson added = OrderedJson::array();
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    if (!v.IsAdded(id)) continue;
    OrderedJson token = {{"id", id}};
    token.update(AddedToken(v, id));
    added.push_back(std::move(token));
  }
  OrderedJson json = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  json["added_tokens"] = std::move(added);
  json["normalizer"] = OrderedJson::parse(pre.normalizer);
  json["pre_tokenizer"] = OrderedJson::parse(pre.pre_tokenizer);
  json["post_processor"] = PostProcessor(metadata, model, pre, v);
  json["decoder"] = OrderedJson::parse(pre.decoder);
  json["model"] = BpeModel(v, pre);
  return json.dump(2);
}

std::string TokenizerConfigJson(const GgufMetadata& metadata, const GgufModel& model, const Vocabulary& v) {
  const auto text_of = [&](std::optional<int64_t> id) -> OrderedJson {
    if (!id || *id < 0 || static_cast<size_t>(*id) >= v.tokens.size()) return nullptr;
    return v.tokens[static_cast<size_t>(*id)];
  };
  OrderedJson added = OrderedJson::object();
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    if (v.IsAdded(id)) added[std::to_string(id)] = AddedToken(v, id);
  }
  OrderedJson json = {{"add_prefix_space", false}, {"added_tokens_decoder", std::move(added)}};
  json["bos_token"] = text_of(model.bos);
  if (const auto chat = metadata.String("tokenizer.chat_template")) json["chat_template"] = *chat;
  json["clean_up_tokenization_spaces"] = false;
  json["eos_token"] = model.eos.empty() ? OrderedJson(nullptr) : text_of(model.eos.front());
  json["model_max_length"] = model.config.max_positions;
  json["pad_token"] = text_of(model.pad);
  // The class that takes tokenizer.json as it stands; transformers rebuilds those of named families.
  json["tokenizer_class"] = "PreTrainedTokenizerFast";
  json["unk_token"] = text_of(metadata.Integer("tokenizer.ggml.unknown_token_id"));
  return json.dump(2) + "\n";
}

}  // namespace

std::optional<GgufTokenizerFiles> ReadGgufTokenizer(const GgufMetadata& metadata, const GgufModel& model,
                                                    const std::optional<std::string>& pre) {
  const auto kind = metadata.String("tokenizer.ggml.model");
  if (!kind || *kind == "no_vocab" || *kind == "none") return std::nullopt;
  if (*kind != "gpt2") {
    throw Error(metadata.where(),
                fmt::format("the tokenizer is of kind {}, not byte-level BPE", Quoted(*kind)),
                "use --no-tokenizer and put the model's own tokenizer.json into the directory");
  }
  const PreTokenizer& chosen = ChoosePreTokenizer(metadata, model, pre);
  const Vocabulary vocabulary = ReadVocabulary(metadata, model);
  return GgufTokenizerFiles{TokenizerJson(metadata, model, chosen, vocabulary),
                            TokenizerConfigJson(metadata, model, vocabulary)};
}

}  // namespace augur
