#include "family/config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace augur {
namespace {

constexpr int64_t kLargest = int64_t{1} << 24;  // of any size; keeps the product of two within int64
constexpr int64_t kMostLayers = 1024;
constexpr int64_t kMostExperts = 4096;

// Reads keys of one JSON object; null counts as absent, as in transformers.
class Reader {
 public:
  Reader(const Json& object, std::string_view where) : object_(object), where_(where) {}

  const Json* Find(std::string_view key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  int64_t Int(std::string_view key, int64_t most = kLargest) const {
    const Json* value = Find(key);
    if (value == nullptr) throw Error(where_, fmt::format("the key \"{}\" is missing", key), "add it");
    return CheckInt(*value, key, most);
  }

  int64_t IntOr(std::string_view key, int64_t otherwise) const {
    return Find(key) == nullptr ? otherwise : Int(key);
  }

  // null says something else than a key left out, for which the family has a default.
  bool LeavesOut(std::string_view key) const { return !object_.contains(key); }

  double Number(std::string_view key, double otherwise) const {
    const Json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) throw WrongType(*value, key, "a number");
    const double number = value->get<double>();
    if (!std::isfinite(number) || number <= 0) {
      throw Error(where_, fmt::format("\"{}\" is {}", key, number), "it must be positive and finite");
    }
    return number;
  }

  bool Bool(std::string_view key, bool otherwise) const {
    const Json* value = Find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) throw WrongType(*value, key, "true or false");
    return value->get<bool>();
  }

  std::string String(std::string_view key, std::string_view otherwise) const {
    const Json* value = Find(key);
    if (value == nullptr) return std::string(otherwise);
    if (!value->is_string()) throw WrongType(*value, key, "a string");
    return value->get<std::string>();
  }

  Error WrongType(const Json& value, std::string_view key, std::string_view wanted) const {
    return Error(where_, fmt::format("\"{}\" is {}, not {}", key, Shorten(value.dump()), wanted),
                 "correct the file or fetch it again");
  }

  std::string_view where() const { return where_; }

 private:
  static std::string Shorten(const std::string& text) {
    return text.size() <= 40 ? text : text.substr(0, 37) + "...";
  }

  int64_t CheckInt(const Json& value, std::string_view key, int64_t most) const {
    if (!value.is_number_integer()) throw WrongType(value, key, "a whole number");
    const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(kLargest);
    const int64_t number = fits ? value.get<int64_t>() : std::numeric_limits<int64_t>::max();
    if (number < 1 || number > most) {
      throw Error(where_, fmt::format("\"{}\" is {}", key, value.dump()),
                  fmt::format("it must lie between 1 and {}", most));
    }
    return number;
  }

  const Json& object_;
  std::string where_;
};

// transformers lets `rope_scaling` win over `rope_parameters`, and an entry of either over a key next to it.
RopeConfig ReadRope(const Reader& reader, double theta, int64_t max_positions) {
  const Json* given = reader.Find("rope_scaling");
  if (given == nullptr || given->empty()) given = reader.Find("rope_parameters");
  static const Json kNone = Json::object();
  if (given == nullptr) given = &kNone;
  if (!given->is_object()) throw reader.WrongType(*given, "rope_parameters", "an object");
  const Reader rope(*given, fmt::format("{}: rope parameters", reader.where()));
  RopeConfig config;
  config.theta = rope.Number("rope_theta", reader.Number("rope_theta", theta));
  const std::string type = rope.String("rope_type", rope.String("type", "default"));
  if (rope.Number("partial_rotary_factor", reader.Number("partial_rotary_factor", 1.0)) != 1.0) {
    throw Error(reader.where(), "\"partial_rotary_factor\" other than 1 is not supported",
                "use a model that rotates whole heads");
  }
  if (type == "default") return config;
  if (type != "llama3") {
    throw Error(reader.where(), fmt::format("rope type '{}' is not supported", type),
                "valid: default, llama3; remove the scaling to use the model up to its original length");
  }
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"})
    RequireKey(*given, key, rope.where());
  config.llama3 = true;
  config.factor = rope.Number("factor", 1.0);
  config.low_freq_factor = rope.Number("low_freq_factor", 1.0);
  config.high_freq_factor = rope.Number("high_freq_factor", 4.0);
  config.original_max_positions =
      reader.Number("original_max_position_embeddings",
                    rope.Number("original_max_position_embeddings", static_cast<double>(max_positions)));
  if (config.high_freq_factor <= config.low_freq_factor) {
    throw Error(rope.where(), "\"high_freq_factor\" is not above \"low_freq_factor\"", "correct the file");
  }
  return config;
}

// Whether some layers attend over a window.
bool HasWindowedLayers(const Reader& reader, Window window, int64_t layers) {
  if (const Json* types = reader.Find("layer_types")) {
    return std::ranges::any_of(*types, [](const Json& type) { return type != "full_attention"; });
  }
  const bool by_switch = window == Window::kBySwitch || window == Window::kFromLayer;
  if (!by_switch || !reader.Bool("use_sliding_window", false)) return false;
  const Json* first = reader.Find("max_window_layers");
  const int64_t full_layers = first != nullptr && first->is_number_integer() ? first->get<int64_t>() : 28;
  return window == Window::kBySwitch || full_layers < layers;
}

void ReadWindow(const Reader& reader, const FamilyTraits& family, ModelConfig* config) {
  if (family.window == Window::kAllLayers) {
    const bool none = reader.Find("sliding_window") == nullptr && !reader.LeavesOut("sliding_window");
    const int64_t window = none ? kLargest : reader.IntOr("sliding_window", family.sliding_window);
    config->limited_by_window = window < config->max_positions;
    config->max_positions = std::min(config->max_positions, window);
  } else if (HasWindowedLayers(reader, family.window, config->layers)) {
    throw Error(reader.where(), "attention over a sliding window (use_sliding_window) is not supported",
                "set use_sliding_window to false and remove layer_types to attend to everything");
  }
}

// no_rope_layers has a 1 for each layer that rotates; without it every no_rope_layer_interval-th does not.
std::vector<bool> ReadRotaryLayers(const Reader& reader, const ModelConfig& config) {
  std::vector<bool> rotary(config.layers, true);
  if (const Json* given = reader.Find("no_rope_layers")) {
    const bool fits = given->is_array() && static_cast<int64_t>(given->size()) >= config.layers &&
                      std::ranges::all_of(*given, [](const Json& x) { return x == 0 || x == 1; });
    if (!fits) throw reader.WrongType(*given, "no_rope_layers", "a 0 or 1 for each layer");
    for (int64_t i = 0; i < config.layers; ++i) rotary[i] = (*given)[i] == 1;
    return rotary;
  }
  const int64_t interval = reader.IntOr("no_rope_layer_interval", 4);
  for (int64_t i = 0; i < config.layers; ++i) rotary[i] = (i + 1) % interval != 0;
  return rotary;
}

// Layers listed in mlp_only_layers are dense; of the others every decoder_sparse_step-th is sparse.
std::vector<bool> ReadSparseLayers(const Reader& reader, const ModelConfig& config) {
  const int64_t step = reader.IntOr("decoder_sparse_step", 1);
  std::vector<bool> sparse(config.layers);
  for (int64_t i = 0; i < config.layers; ++i) sparse[i] = (i + 1) % step == 0;
  if (const Json* dense = reader.Find("mlp_only_layers")) {
    if (!dense->is_array()) throw reader.WrongType(*dense, "mlp_only_layers", "a list of layers");
    for (const Json& layer : *dense) {
      if (!layer.is_number_integer()) throw reader.WrongType(*dense, "mlp_only_layers", "a list of layers");
      const int64_t index = layer.get<int64_t>();
      if (index >= 0 && index < config.layers) sparse[index] = false;
    }
  }
  return sparse;
}

void ReadMoe(const Reader& reader, ModelConfig* config) {
  MoeConfig& moe = config->moe;
  moe.experts =
      reader.Int(reader.Find("num_experts") != nullptr ? "num_experts" : "num_local_experts", kMostExperts);
  moe.experts_per_token = reader.Int("num_experts_per_tok");
  moe.intermediate_size = reader.Int("moe_intermediate_size");
  moe.norm_topk_prob = reader.Bool("norm_topk_prob", false);
  if (moe.experts_per_token > moe.experts) {
    throw Error(
        reader.where(),
        fmt::format("num_experts_per_tok {} exceeds the {} experts", moe.experts_per_token, moe.experts),
        "correct the file");
  }
  config->sparse = ReadSparseLayers(reader, *config);
}

int64_t DefaultHeadDim(const ModelConfig& config, const FamilyTraits& family, std::string_view where) {
  if (family.head_dim > 0) return family.head_dim;
  if (config.hidden_size % config.heads != 0) {
    throw Error(where,
                fmt::format("hidden_size {} is not a multiple of num_attention_heads {}", config.hidden_size,
                            config.heads),
                "correct the file, or give head_dim");
  }
  return config.hidden_size / config.heads;
}

void ReadSizes(const Reader& reader, const FamilyTraits& family, ModelConfig* config) {
  config->vocab_size = reader.Int("vocab_size");
  config->hidden_size = reader.Int("hidden_size");
  config->intermediate_size = reader.Int("intermediate_size");
  config->layers = reader.Int("num_hidden_layers", kMostLayers);
  config->heads = reader.Int("num_attention_heads");
  const bool by_family = family.kv_heads > 0 && reader.LeavesOut("num_key_value_heads");
  config->kv_heads = reader.IntOr("num_key_value_heads", by_family ? family.kv_heads : config->heads);
  config->head_dim = reader.Find("head_dim") != nullptr ? reader.Int("head_dim")
                                                        : DefaultHeadDim(*config, family, reader.where());
  config->max_positions = reader.IntOr("max_position_embeddings", family.max_positions);
  if (config->heads % config->kv_heads != 0) {
    throw Error(reader.where(),
                fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                            config->heads, config->kv_heads),
                "correct the file");
  }
  if (config->head_dim % 2 != 0) {
    throw Error(reader.where(), fmt::format("head_dim {} is odd", config->head_dim),
                "rotary embedding turns pairs; correct the file");
  }
}

bool HasBias(Bias bias, const Reader& reader, std::string_view key) {
  return bias == Bias::kAlways || (bias == Bias::kByKey && reader.Bool(key, false));
}

void ReadModules(const Reader& reader, const FamilyTraits& family, ModelConfig* config) {
  config->tied_head = reader.Bool("tie_word_embeddings", family.tied_head);
  config->qkv_bias = HasBias(family.qkv_bias, reader, "attention_bias");
  config->out_bias = HasBias(family.out_bias, reader, "attention_bias");
  config->mlp_bias = HasBias(family.mlp_bias, reader, "mlp_bias");
  config->qk_norm = family.qk_norm;
  config->norms_behind = family.norms_behind;
  config->rotary.assign(config->layers, true);
  if (family.no_rope_layers) config->rotary = ReadRotaryLayers(reader, *config);
  config->sparse.assign(config->layers, false);
  if (family.experts) ReadMoe(reader, config);
}

}  // namespace

ModelConfig ParseModelConfig(const Json& json, std::string_view where) {
  ModelConfig config;
  config.source = json;
  config.model_type = RequireString(json, "model_type", where);
  const FamilyTraits& family = FindFamily(config.model_type, where);
  const Reader reader(json, where);
  if (reader.Find("quantization_config") != nullptr) {
    throw Error(where, "quantised weights (quantization_config) are not supported",
                "use the model's bfloat16, float16 or float32 version");
  }
  if (const std::string act = reader.String("hidden_act", "silu"); act != "silu") {
    throw Error(where, fmt::format("hidden_act '{}' is not supported", act), "valid: silu");
  }
  ReadSizes(reader, family, &config);
  config.rms_norm_eps = reader.Number("rms_norm_eps", family.rms_norm_eps);
  ReadModules(reader, family, &config);
  if (const Json* pad = reader.Find("pad_token_id"); pad != nullptr && pad->is_number_integer()) {
    const int64_t id = pad->get<int64_t>();
    config.pad_token = id >= 0 && id < config.vocab_size ? id : -1;
  }
  config.rope = ReadRope(reader, family.rope_theta, config.max_positions);
  ReadWindow(reader, family, &config);
  return config;
}

}  // namespace augur
