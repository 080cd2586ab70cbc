#include "model/shapes.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <iterator>

#include "base/error.h"

namespace augur {

ModelConfig NamedShape(std::string_view name, std::string_view where) {
  constexpr std::string_view kNames[] = {"qwen3-4b", "smollm2-135m"};
  if (name == kNames[0]) {
    return ParseModelConfig({{"model_type", "qwen3"},
                             {"vocab_size", 151936},
                             {"hidden_size", 2560},
                             {"intermediate_size", 9728},
                             {"num_hidden_layers", 36},
                             {"num_attention_heads", 32},
                             {"num_key_value_heads", 8},
                             {"head_dim", 128},
                             {"max_position_embeddings", 40960},
                             {"rms_norm_eps", 1e-6},
                             {"rope_theta", 1e6},
                             {"tie_word_embeddings", true}},
                            name);
  }
  if (name == kNames[1]) {
    return ParseModelConfig({{"model_type", "llama"},
                             {"vocab_size", 49152},
                             {"hidden_size", 576},
                             {"intermediate_size", 1536},
                             {"num_hidden_layers", 30},
                             {"num_attention_heads", 9},
                             {"num_key_value_heads", 3},
                             {"max_position_embeddings", 8192},
                             {"rms_norm_eps", 1e-5},
                             {"rope_theta", 100000.0},
                             {"tie_word_embeddings", true}},
                            name);
  }
  throw UnknownName(where, "shape", name, kNames);
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
