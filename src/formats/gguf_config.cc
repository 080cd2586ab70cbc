#include "formats/gguf_config.h"

#include <algorithm>
#include <cmath>

#include "base/names.h"
#include "base/utf8.h"
#include "family/layer_table.h"
#include "formats/gguf_rope.h"

namespace augur {
namespace {

using OrderedJson = nlohmann::ordered_json;

const FamilyTraits& ReadFamily(const GgufMetadata& metadata) {
  const std::string name = metadata.String("general.architecture").value_or("");
  const std::vector<std::string_view> names = GgufFamilies();
  if (std::ranges::find(names, name) != names.end()) return FindFamily(name, metadata.where());
  throw Error(metadata.where(),
              fmt::format("the architecture is {}", name.empty() ? "missing" : Quoted(name)),
              fmt::format("augur convert reads {}", OneOf(names)));
}

// Keys whose presence means a model that these families cannot express.
void RefuseWhatWouldBeLost(const GgufMetadata& metadata, const std::string& prefix, int64_t context) {
  const auto refuse = [&](std::string_view what, std::string_view remedy) {
    throw Error(metadata.where(), what, remedy);
  };
  if (metadata.Integer("split.count").value_or(1) > 1) {
    refuse("is one part of a split file", "join the parts with llama-gguf-split --merge");
  }
  if (metadata.Integer(prefix + "expert_count").value_or(0) > 0) {
    refuse("is a mixture of experts", "augur convert reads dense models only");
  }
  if (metadata.Integer(prefix + "attention.sliding_window").value_or(context) < context) {
    refuse("uses sliding-window attention", "augur convert reads models with full attention only");
  }
}

int64_t Positive(const GgufMetadata& metadata, const std::string& key) {
  const int64_t value = metadata.RequireInteger(key);
  if (value > 0 && value <= INT32_MAX) return value;
  throw Error(metadata.where(), fmt::format("\"{}\" is {}", key, value),
              "it must be a positive 32-bit number");
}

// A finite positive number; `fallback` where the key may be absent.
double PositiveNumber(const GgufMetadata& metadata, const std::string& key, std::optional<double> fallback) {
  const auto value = metadata.Number(key);
  if (!value && fallback) return *fallback;
  if (value && *value > 0 && std::isfinite(*value)) return *value;
  throw Error(
      metadata.where(),
      value ? fmt::format("\"{}\" is {}", key, *value) : fmt::format("the key \"{}\" is missing", key),
      "it must be a positive number; convert the original model again");
}

std::optional<int64_t> TokenId(const GgufMetadata& metadata, const char* key, int64_t vocab_size) {
  const auto id = metadata.Integer(key);
  if (id && (*id < 0 || *id >= vocab_size)) {
    throw Error(metadata.where(),
                fmt::format("\"{}\" is {}, outside the vocabulary of {}", key, *id, vocab_size),
                "convert the original model again");
  }
  return id;
}

int64_t ReadVocabularySize(const GgufContent& content, const GgufMetadata& metadata) {
  const auto embedding = content.tensors.find(fmt::format("{}.weight", kEmbeddingModule.gguf));
  if (embedding == content.tensors.end() || embedding->second.shape.size() != 2 ||
      embedding->second.shape[0] == 0) {
    throw Error(metadata.where(), "the matrix token_embd.weight is missing",
                "name a file that holds the weights, not the vocabulary alone");
  }
  return embedding->second.shape[0];
}

// Of each head: one dimension, all of it rotated.
int64_t ReadHeadDim(const GgufMetadata& metadata, const std::string& prefix, int64_t hidden, int64_t heads) {
  const int64_t head_dim = metadata.Has(prefix + "attention.key_length")
                               ? Positive(metadata, prefix + "attention.key_length")
                               : hidden / heads;
  const int64_t value = metadata.Integer(prefix + "attention.value_length").value_or(head_dim);
  const int64_t rotary = metadata.Integer(prefix + "rope.dimension_count").value_or(head_dim);
  if (value == head_dim && rotary == head_dim) return head_dim;
  throw Error(
      metadata.where(),
      fmt::format("head dimension {}, value dimension {} and rotary dimension {}", head_dim, value, rotary),
      "augur convert reads models with one full-size rotary head dimension");
}

// Switches of the family's modules, by which tensors there are.
void AddSwitches(const GgufContent& content, const FamilyTraits& family, OrderedJson* json) {
  (*json)["tie_word_embeddings"] = !content.tensors.contains(fmt::format("{}.weight", kHeadModule.gguf));
  if (family.qkv_bias == Bias::kByKey) {
    (*json)["attention_bias"] = content.tensors.contains("blk.0.attn_q.bias");
  }
  if (family.mlp_bias == Bias::kByKey) (*json)["mlp_bias"] = false;
  if (family.window == Window::kFromLayer) (*json)["use_sliding_window"] = false;
}

OrderedJson ReadConfig(const GgufContent& content, const GgufMetadata& metadata, const FamilyTraits& family) {
  const std::string prefix = std::string(family.model_type) + ".",
                    kv_heads = prefix + "attention.head_count_kv";
  const int64_t hidden = Positive(metadata, prefix + "embedding_length");
  const int64_t heads = Positive(metadata, prefix + "attention.head_count");
  const int64_t context = Positive(metadata, prefix + "context_length");
  RefuseWhatWouldBeLost(metadata, prefix, context);
  OrderedJson json = {
      {"architectures", {family.gguf_class}},
      {"model_type", family.model_type},
      {"vocab_size", ReadVocabularySize(content, metadata)},
      {"hidden_size", hidden},
      {"intermediate_size", Positive(metadata, prefix + "feed_forward_length")},
      {"num_hidden_layers", Positive(metadata, prefix + "block_count")},
      {"num_attention_heads", heads},
      {"num_key_value_heads", metadata.Has(kv_heads) ? Positive(metadata, kv_heads) : heads},
      {"head_dim", ReadHeadDim(metadata, prefix, hidden, heads)},
      {"hidden_act", "silu"},
      {"max_position_embeddings", context},
      {"rms_norm_eps", PositiveNumber(metadata, prefix + "attention.layer_norm_rms_epsilon", std::nullopt)},
      {"rope_theta", PositiveNumber(metadata, prefix + "rope.freq_base", 10000.0)},
      {"rope_scaling", nullptr},
      {"attention_dropout", 0.0},
      {"initializer_range", 0.02},
      {"use_cache", true}};
  AddSwitches(content, family, &json);
  return json;
}

void AddTokenIds(const GgufModel& model, OrderedJson* json) {
  if (model.bos) (*json)["bos_token_id"] = *model.bos;
  if (model.eos.size() == 1) (*json)["eos_token_id"] = model.eos.front();
  if (model.eos.size() > 1) (*json)["eos_token_id"] = model.eos;
  if (model.pad) (*json)["pad_token_id"] = *model.pad;
}

std::string_view TorchName(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kF16 ? "float16" : "bfloat16";
}

}  // namespace

std::vector<std::string_view> GgufFamilies() {
  std::vector<std::string_view> names;
  for (const FamilyTraits& family : Families()) {
    if (!family.gguf_class.empty()) names.push_back(family.model_type);
  }
  return names;
}

GgufModel ReadGgufModel(const GgufContent& content, const GgufMetadata& metadata) {
  GgufModel model;
  model.family = &ReadFamily(metadata);
  model.json = ReadConfig(content, metadata, *model.family);
  model.config = ParseModelConfig(Json(model.json), metadata.where());
  // Only now: scaling that Augur does not compute with is converted all the same.
  model.json["rope_scaling"] = ReadRopeScaling(content, metadata, std::string(model.family->model_type) + ".",
                                               model.config.head_dim, model.config.rope.theta);
  const int64_t tokens = model.config.vocab_size;
  model.bos = TokenId(metadata, "tokenizer.ggml.bos_token_id", tokens);
  model.pad = TokenId(metadata, "tokenizer.ggml.padding_token_id", tokens);
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    const auto id = TokenId(metadata, key, tokens);
    if (id && (model.eos.empty() || model.eos.front() != *id)) model.eos.push_back(*id);
  }
  AddTokenIds(model, &model.json);
  return model;
}

std::string ConfigJson(const GgufModel& model, DType dtype) {
  OrderedJson json = model.json;
  json["torch_dtype"] = TorchName(dtype);
  return json.dump(2) + "\n";
}

std::string GenerationConfigJson(const GgufModel& model) {
  OrderedJson json = {{"_from_model_config", true}};
  AddTokenIds(model, &json);
  return json.dump(2) + "\n";
}

}  // namespace augur
