#include "formats/gguf_config.h"

#include <cmath>

#include "base/utf8.h"
#include "formats/gguf_rope.h"

namespace augur {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Family {
  std::string_view name;        // in GGUF and as model_type
  std::string_view class_name;  // of transformers
};

// In the order of GgufArchitecture.
constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"}};

const Family& FamilyOf(const GgufModel& model) { return kFamilies[static_cast<size_t>(model.architecture)]; }

GgufArchitecture ReadArchitecture(const GgufMetadata& metadata) {
  const std::string name = metadata.String("general.architecture").value_or("");
  for (size_t i = 0; i < std::size(kFamilies); ++i) {
    if (kFamilies[i].name == name) return static_cast<GgufArchitecture>(i);
  }
  throw Error(metadata.where(),
              fmt::format("the architecture is {}", name.empty() ? "missing" : Quoted(name)),
              "augur convert reads llama, qwen2 and qwen3");
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
  const auto embedding = content.tensors.find("token_embd.weight");
  if (embedding == content.tensors.end() || embedding->second.shape.size() != 2 ||
      embedding->second.shape[0] == 0) {
    throw Error(metadata.where(), "the matrix token_embd.weight is missing",
                "name a file that holds the weights, not the vocabulary alone");
  }
  return embedding->second.shape[0];
}

void ReadHeads(const GgufMetadata& metadata, const std::string& prefix, GgufModel* model) {
  model->heads = Positive(metadata, prefix + "attention.head_count");
  model->kv_heads = metadata.Has(prefix + "attention.head_count_kv")
                        ? Positive(metadata, prefix + "attention.head_count_kv")
                        : model->heads;
  model->head_dim = metadata.Has(prefix + "attention.key_length")
                        ? Positive(metadata, prefix + "attention.key_length")
                        : model->hidden / model->heads;
  const auto fault = [&](std::string_view what) {
    return Error(metadata.where(), what,
                 "augur convert reads models with one full-size rotary head dimension");
  };
  const int64_t value = metadata.Integer(prefix + "attention.value_length").value_or(model->head_dim);
  const int64_t rotary = metadata.Integer(prefix + "rope.dimension_count").value_or(model->head_dim);
  if (model->heads % model->kv_heads != 0) {
    throw fault(fmt::format("{} heads cannot share {} key-value heads", model->heads, model->kv_heads));
  }
  if (value != model->head_dim || rotary != model->head_dim || model->head_dim % 2 != 0 ||
      model->head_dim == 0) {
    throw fault(fmt::format("head dimension {}, value dimension {} and rotary dimension {}", model->head_dim,
                            value, rotary));
  }
}

}  // namespace

GgufModel ReadGgufModel(const GgufContent& content, const GgufMetadata& metadata) {
  GgufModel model{};
  model.architecture = ReadArchitecture(metadata);
  const std::string prefix = std::string(FamilyOf(model).name) + ".";
  model.layers = Positive(metadata, prefix + "block_count");
  model.hidden = Positive(metadata, prefix + "embedding_length");
  model.intermediate = Positive(metadata, prefix + "feed_forward_length");
  model.context = Positive(metadata, prefix + "context_length");
  RefuseWhatWouldBeLost(metadata, prefix, model.context);
  ReadHeads(metadata, prefix, &model);
  model.vocab_size = ReadVocabularySize(content, metadata);
  model.rms_eps = PositiveNumber(metadata, prefix + "attention.layer_norm_rms_epsilon", std::nullopt);
  model.rope_theta = PositiveNumber(metadata, prefix + "rope.freq_base", 10000.0);
  model.rope_scaling = ReadRopeScaling(content, metadata, prefix, model.head_dim, model.rope_theta);
  model.tied = !content.tensors.contains("output.weight");
  model.attention_bias =
      model.architecture != GgufArchitecture::kQwen2 && content.tensors.contains("blk.0.attn_q.bias");
  model.bos = TokenId(metadata, "tokenizer.ggml.bos_token_id", model.vocab_size);
  model.pad = TokenId(metadata, "tokenizer.ggml.padding_token_id", model.vocab_size);
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    const auto id = TokenId(metadata, key, model.vocab_size);
    if (id && (model.eos.empty() || model.eos.front() != *id)) model.eos.push_back(*id);
  }
  return model;
}

namespace {

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

std::string ConfigJson(const GgufModel& model, DType dtype) {
  OrderedJson json = {{"architectures", {FamilyOf(model).class_name}},
                      {"model_type", FamilyOf(model).name},
                      {"vocab_size", model.vocab_size},
                      {"hidden_size", model.hidden},
                      {"intermediate_size", model.intermediate},
                      {"num_hidden_layers", model.layers},
                      {"num_attention_heads", model.heads},
                      {"num_key_value_heads", model.kv_heads},
                      {"head_dim", model.head_dim},
                      {"hidden_act", "silu"},
                      {"max_position_embeddings", model.context},
                      {"rms_norm_eps", model.rms_eps},
                      {"rope_theta", model.rope_theta},
                      {"rope_scaling", model.rope_scaling},
                      {"tie_word_embeddings", model.tied},
                      {"attention_dropout", 0.0},
                      {"initializer_range", 0.02},
                      {"use_cache", true},
                      {"torch_dtype", TorchName(dtype)}};
  if (model.architecture != GgufArchitecture::kQwen2) json["attention_bias"] = model.attention_bias;
  if (model.architecture == GgufArchitecture::kLlama) json["mlp_bias"] = false;
  if (model.architecture != GgufArchitecture::kLlama) json["use_sliding_window"] = false;
  AddTokenIds(model, &json);
  return json.dump(2) + "\n";
}

std::string GenerationConfigJson(const GgufModel& model) {
  OrderedJson json = {{"_from_model_config", true}};
  AddTokenIds(model, &json);
  return json.dump(2) + "\n";
}

}  // namespace augur
