// A model's weights in the form the CPU backend computes with.
#pragma once

#include <array>
#include <vector>

#include "kernels/decode/packed_gemm.h"
#include "model/model.h"
#include "rollout/engine.h"

namespace augur {

struct CpuLinear {
  PackedWeights weight;
  std::vector<float> bias;  // [padded outputs], or empty

  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

// A module of a layer; empty where the layer has none.
struct CpuModule {
  std::vector<float> norm;          // a norm's weight
  std::vector<CpuLinear> matrices;  // a linear layer's one, or one for each expert
};

// The modules of one layer, by Slot.
struct CpuLayer : std::array<CpuModule, kSlots> {
  const std::vector<float>& norm(Slot slot) const { return (*this)[slot].norm; }
  const CpuLinear& linear(Slot slot) const { return (*this)[slot].matrices.front(); }
  const CpuLinear& expert(Slot slot, int64_t index) const { return (*this)[slot].matrices[index]; }
  bool sparse() const { return !(*this)[kRouter].matrices.empty(); }
};

// The formats of the linear layers, and of those that stay out of FP8: router and head.
GemmFormat LinearFormat(RolloutPrecision precision);
GemmFormat HeadFormat(RolloutPrecision precision);

class CpuWeights {
 public:
  CpuWeights(const ModelConfig& config, RolloutPrecision precision);

  // From the model, or part by part from its store where there is one.
  void Load(const Model& model, LayerStore* store);
  // Gives the memory back until the next Load.
  void Release();
  bool released() const { return layers_.empty(); }

  const std::vector<CpuLayer>& layers() const { return layers_; }
  const PackedWeights& head() const { return head_.weight; }
  const std::vector<float>& norm() const { return norm_; }
  // What one row of activations reads of it, the embedding apart.
  int64_t bytes() const { return bytes_; }
  // One token's embedding, rounded as the precision asks.
  void Embed(int32_t token, float* to) const;

 private:
  void Allocate();

  ModelConfig config_;
  RolloutPrecision precision_;
  std::vector<CpuLayer> layers_;
  CpuLinear head_;
  PackedWeights embedding_;  // where the head is not tied to it
  std::vector<float> norm_;
  int64_t bytes_ = 0;
};

}  // namespace augur
