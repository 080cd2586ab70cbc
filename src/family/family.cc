#include "family/family.h"

#include <fmt/ranges.h>

#include <vector>

#include "base/error.h"

namespace augur {
namespace {

constexpr FamilyTraits kFamilies[] = {
    {.model_type = "llama",
     .qkv_bias = Bias::kByKey,
     .out_bias = Bias::kByKey,
     .mlp_bias = Bias::kByKey,
     .max_positions = 2048,
     .gguf_class = "LlamaForCausalLM",
     .gguf_interleaved = true},
    {.model_type = "qwen2",
     .qkv_bias = Bias::kAlways,
     .window = Window::kFromLayer,
     .gguf_class = "Qwen2ForCausalLM",
     .gguf_pre = "qwen2"},
    {.model_type = "qwen3",
     .qkv_bias = Bias::kByKey,
     .out_bias = Bias::kByKey,
     .qk_norm = QkNorm::kHead,
     .window = Window::kFromLayer,
     .head_dim = 128,
     .gguf_class = "Qwen3ForCausalLM",
     .gguf_pre = "qwen2"},
    {.model_type = "qwen3_moe",
     .qkv_bias = Bias::kByKey,
     .out_bias = Bias::kByKey,
     .qk_norm = QkNorm::kHead,
     .experts = true,
     .window = Window::kBySwitch},
    {.model_type = "mistral",
     .window = Window::kAllLayers,
     .kv_heads = 8,
     .max_positions = 131072,
     .sliding_window = 4096},
    {.model_type = "olmo2",
     .qkv_bias = Bias::kByKey,
     .out_bias = Bias::kByKey,
     .qk_norm = QkNorm::kAllHeads,
     .norms_behind = true,
     .max_positions = 2048,
     .rms_norm_eps = 1e-5},
    {.model_type = "smollm3",
     .qkv_bias = Bias::kByKey,
     .out_bias = Bias::kByKey,
     .mlp_bias = Bias::kByKey,
     .no_rope_layers = true,
     .window = Window::kBySwitch,
     .kv_heads = 4,
     .rope_theta = 2e6,
     .tied_head = true},
};

}  // namespace

std::span<const FamilyTraits> Families() { return kFamilies; }

const FamilyTraits& FindFamily(std::string_view model_type, std::string_view where) {
  std::vector<std::string_view> names;
  for (const FamilyTraits& family : kFamilies) {
    if (family.model_type == model_type) return family;
    names.push_back(family.model_type);
  }
  throw Error(where, fmt::format("model_type '{}' is not supported", model_type),
              fmt::format("valid: {}", fmt::join(names, ", ")));
}

}  // namespace augur
