// What sets the supported families of decoders apart, as data: a family is one entry of the table in
// family.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace augur {

// Whether modules have a bias: never, always, or as a key of config.json says.
enum class Bias { kNever, kAlways, kByKey };

// RMSNorm of queries and keys: none, each head by itself, or all heads of a token together.
enum class QkNorm { kNone, kHead, kAllHeads };

// Which keys ask for attention over a window (layer_types apart). A window that all layers share limits what
// the model reads, since up to there attention is full; a configuration with windows in some layers is
// refused.
enum class Window {
  kNone,
  kAllLayers,  // sliding_window, of every layer
  kBySwitch,   // use_sliding_window, for all layers
  kFromLayer,  // use_sliding_window, from layer max_window_layers on
};

struct FamilyTraits {
  std::string_view model_type;
  Bias qkv_bias = Bias::kNever;  // by the key attention_bias
  Bias out_bias = Bias::kNever;  // by the key attention_bias
  Bias mlp_bias = Bias::kNever;  // by the key mlp_bias
  QkNorm qk_norm = QkNorm::kNone;
  // Norms stand behind attention and MLP, on what they add to the residual, in place of before them.
  bool norms_behind = false;
  bool experts = false;  // some layers' MLP may be a mixture of experts
  bool no_rope_layers =
      false;  // some layers may rotate nothing (keys no_rope_layers, no_rope_layer_interval)
  Window window = Window::kNone;
  // What keys that config.json leaves out stand for.
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  int64_t kv_heads = 0;  // 0: num_attention_heads
  int64_t max_positions = 32768;
  int64_t sliding_window = 0;  // 0: none
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tied_head = false;
  // Of families that are converted from GGUF, where model_type is the architecture's name, too.
  std::string_view gguf_class = "";  // in transformers, of what is converted; empty: nothing is
  std::string_view gguf_pre = "";    // how text is split where a file does not say; empty: the user must
  bool gguf_interleaved = false;     // rows of a query's or key's two rotary halves stand in turn
};

std::span<const FamilyTraits> Families();

// The family of a model_type; throws Error at `where` for one that is not supported.
const FamilyTraits& FindFamily(std::string_view model_type, std::string_view where);

}  // namespace augur
