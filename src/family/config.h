// What config.json of a Hugging Face model directory says, checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "family/family.h"

namespace augur {

// Rotation frequencies. Read from `rope_parameters`, or from `rope_theta` and `rope_scaling` of older files.
struct RopeConfig {
  double theta = 10000.0;
  // Llama 3's scaling: long wavelengths are stretched by `factor`, short ones kept, those between
  // interpolated.
  bool llama3 = false;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_max_positions = 8192.0;
};

// Mixture of experts (qwen3_moe).
struct MoeConfig {
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  int64_t intermediate_size = 0;
  bool norm_topk_prob = false;
};

// A decoder of one of the families in family.cc. Dropout rates are not read: Augur computes without dropout.
struct ModelConfig {
  std::string model_type;
  int64_t vocab_size = 0;  // rows of embedding and head; those behind the tokenizer's last are padding
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;       // no more than a window of attention, where there is one
  bool limited_by_window = false;  // rather than by max_position_embeddings
  double rms_norm_eps = 1e-6;
  bool tied_head = false;
  bool qkv_bias = false;
  bool out_bias = false;
  bool mlp_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool norms_behind = false;  // attention and MLP, in place of before them
  int64_t pad_token = -1;     // its embedding receives no gradient, as in transformers; -1 for none
  RopeConfig rope;
  MoeConfig moe;
  std::vector<bool> sparse;  // [layers]: whether the layer's MLP is a mixture of experts
  std::vector<bool> rotary;  // [layers]: whether queries and keys are rotated by position
  Json source;               // the file as read; what is not understood here is kept when a model is saved

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

// Throws Error naming `where` and the key: absent or of the wrong type, out of range, or asking for what
// Augur does not support (another model_type, rope type or activation, sliding windows, quantised weights).
ModelConfig ParseModelConfig(const Json& json, std::string_view where);

}  // namespace augur
