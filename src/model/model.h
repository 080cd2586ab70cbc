// A decoder's weights, in memory as the computation wants them, and how they map to Hugging Face's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/config.h"

namespace augur {

struct LinearWeights {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], or undefined
};

// Query, key and value projections are one matrix, and so are gate and up: one product in place of three or
// two.
struct LayerWeights {
  at::Tensor input_norm;           // [hidden]
  LinearWeights qkv;               // [(heads + 2 * kv_heads) * head_dim, hidden]
  at::Tensor q_norm, k_norm;       // [head_dim], or undefined
  LinearWeights out;               // [hidden, heads * head_dim]
  at::Tensor post_attention_norm;  // [hidden]
  // A dense layer has these,
  LinearWeights gate_up;  // [2 * intermediate, hidden]
  LinearWeights down;     // [hidden, intermediate]
  // a sparse one these.
  at::Tensor router;           // [experts, hidden]
  at::Tensor experts_gate_up;  // [experts, 2 * moe intermediate, hidden]
  at::Tensor experts_down;     // [experts, hidden, moe intermediate]
};

struct Model {
  ModelConfig config;
  at::Tensor embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  at::Tensor norm;                 // [hidden]
  at::Tensor head;                 // [vocab, hidden]; the embedding itself when tied
  at::Tensor inverse_frequencies;  // [head_dim / 2] float32
};

// One tensor of a Hugging Face directory: a range of rows of a parameter, of one expert where there are
// several.
struct StoredTensor {
  std::string name;      // "model.layers.0.self_attn.q_proj.weight"
  at::Tensor parameter;  // one of the Model's
  int64_t begin_row = 0;
  int64_t rows = 0;
  int64_t expert = -1;

  // The same part of the parameter, or of anything shaped like it (its gradient, an optimizer state). A view.
  at::Tensor Part(const at::Tensor& whole) const;
  std::vector<int64_t> Shape() const;
};

// Uninitialised weights of the given dtype and device.
Model AllocateModel(const ModelConfig& config, at::ScalarType dtype, at::Device device);

// Every tensor of the directory form exactly once, in the order of the layers. A tied head is not among them.
std::vector<StoredTensor> StoredTensors(const Model& model);

// The distinct parameters in a fixed order; those of one layer alone.
std::vector<at::Tensor> Parameters(const Model& model);
std::vector<at::Tensor> LayerParameters(const LayerWeights& layer);

void SetRequiresGrad(const Model& model, bool requires_grad);

}  // namespace augur
