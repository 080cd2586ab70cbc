#include "model/shapes.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "base/json.h"
#include "base/names.h"

namespace augur {

namespace {

Json Qwen3(int64_t hidden, int64_t intermediate, int64_t layers, bool tied) {
  return {{"model_type", "qwen3"},
          {"vocab_size", 151936},
          {"hidden_size", hidden},
          {"intermediate_size", intermediate},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"head_dim", 128},
          {"max_position_embeddings", 40960},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1e6},
          {"tie_word_embeddings", tied}};
}

Json Qwen3Moe() {
  Json config = Qwen3(2048, 6144, 48, false);
  config["model_type"] = "qwen3_moe";
  config["num_key_value_heads"] = 4;
  config["moe_intermediate_size"] = 768;
  config["num_experts"] = 128;
  config["num_experts_per_tok"] = 8;
  config["norm_topk_prob"] = true;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = Json::array();
  return config;
}

Json SmolLm2() {
  return {{"model_type", "llama"},      {"vocab_size", 49152},
          {"hidden_size", 576},         {"intermediate_size", 1536},
          {"num_hidden_layers", 30},    {"num_attention_heads", 9},
          {"num_key_value_heads", 3},   {"max_position_embeddings", 8192},
          {"rms_norm_eps", 1e-5},       {"rope_theta", 100000.0},
          {"tie_word_embeddings", true}};
}

struct Shape {
  std::string_view name;
  Json (*config)();
};
constexpr Shape kShapes[] = {
    {"smollm2-135m", SmolLm2},
    {"qwen3-4b", [] { return Qwen3(2560, 9728, 36, true); }},
    {"qwen3-8b", [] { return Qwen3(4096, 12288, 36, false); }},
    {"qwen3-30b-a3b", Qwen3Moe},
};

}  // namespace

std::span<const std::string_view> ShapeNames() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const Shape& shape : kShapes) all.push_back(shape.name);
    return all;
  }();
  return names;
}

ModelConfig NamedShape(std::string_view name, std::string_view where) {
  return ParseModelConfig(kShapes[IndexOfName(where, "shape", name, ShapeNames())].config(), name);
}

Model NoiseModel(const ModelConfig& config, at::ScalarType dtype, at::Device device, uint64_t seed) {
  const at::NoGradGuard no_grad;
  Model model = AllocateModel(config, dtype, device);
  at::manual_seed(seed);
  for (const at::Tensor& parameter : Parameters(model)) {
    if (parameter.dim() == 1) {
      parameter.fill_(1);
    } else {
      parameter.normal_(0, 0.02);
    }
  }
  return model;
}

}  // namespace augur
