// A decoder's weights, in memory as the computation wants them, and how they map to Hugging Face's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "family/config.h"
#include "family/layer_table.h"
#include "ops/layer/low_rank.h"

namespace augur {

// Undefined where the module is no part of the layer.
struct ModuleWeights {
  at::Tensor weight;  // [width], [out, in] or [experts, out, in]
  at::Tensor bias;    // [out], or undefined
  // With adapters the weight is base + scale b a, rounded (model/adapter.h).
  at::Tensor base;
  at::Tensor base_scale;  // float32 [out] or [experts, out], where the base is in FP8; else undefined
  std::vector<LowRank> adapters;
};

// The modules of one layer, by Slot.
struct LayerWeights : std::array<ModuleWeights, kSlots> {
  bool sparse() const { return (*this)[kRouter].weight.defined(); }
};

// A module that is trained whole while adapters are.
struct WholeModule {
  std::string name;   // "model.norm"
  at::Tensor weight;  // the Model's
  at::Tensor base;    // what it was at first
  Role role;
};

struct LoraState {
  int64_t rank = 0;
  double alpha = 0;
  std::vector<WholeModule> whole;
};

struct Model {
  ModelConfig config;
  at::Tensor embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  at::Tensor norm;                 // [hidden]
  at::Tensor head;                 // [vocab, hidden]; the embedding itself when tied
  at::Tensor inverse_frequencies;  // [head_dim / 2] float32
  std::optional<LoraState> lora;   // only adapters and some modules are trained
};

// One tensor of a Hugging Face directory: a range of rows of a parameter, of one expert where there are
// several.
struct StoredTensor {
  std::string name;      // "model.layers.0.self_attn.q_proj.weight"
  at::Tensor parameter;  // one of the Model's
  Role role;             // of the module
  bool bias = false;
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

// The distinct parameters in a fixed order. Of one layer alone, with the factors of adapters.
std::vector<at::Tensor> Parameters(const Model& model);
std::vector<at::Tensor> LayerParameters(const LayerWeights& layer);

// What training changes: every parameter, or the factors of adapters ("….q_proj.lora_A.weight") and the
// modules that are trained whole.
std::vector<StoredTensor> TrainedTensors(const Model& model);
std::vector<at::Tensor> TrainedParameters(const Model& model);

// Of the trained parameters; others require none.
void SetRequiresGrad(const Model& model, bool requires_grad);

}  // namespace augur
