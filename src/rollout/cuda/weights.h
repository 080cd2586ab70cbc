// A model's weights as generation on a GPU uses them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "model/model.h"
#include "ops/layer/fp8_product.h"
#include "rollout/engine.h"

namespace augur {

// y = x W^T + bias. With `scale` [1, out] the weight is e4m3 and the output channels are multiplied by it.
struct CudaLinear {
  at::Tensor weight;  // [out, in]
  at::Tensor scale;
  at::Tensor bias;
};

// The linear layers but for experts, by Slot; and experts that compute in FP8.
struct CudaLayer : std::array<CudaLinear, kSlots> {
  Fp8Rows experts_gate_up, experts_down;  // undefined where experts compute in the model's type
};

// Weights of the precision's own type are shared with the model, unless `own`, so that an update in place
// costs nothing; others are copies; what is rounded to FP8 is kept in FP8 alone. Where the model has a store
// all are copies, taken part by part.
class CudaWeights {
 public:
  CudaWeights(const Model& model, RolloutPrecision precision, bool own, LayerStore* store);

  // Takes over the model's current weights. True where a tensor stands at another address than before.
  bool Update(const Model& model);
  // Gives the memory of copies back until the next Update.
  void Release() { ForgetWeights(); }
  // Of copies.
  int64_t bytes() const;

  const Model& model() const { return model_; }
  const std::vector<CudaLayer>& layers() const { return layers_; }
  at::ScalarType dtype() const { return dtype_; }
  bool fp8() const { return fp8_; }
  // float32 1 on the GPU.
  const at::Tensor& one() const { return one_; }

 private:
  // What generation reads, in a fixed order.
  std::vector<at::Tensor> Tensors() const;
  void ForgetWeights();
  void Take(const at::Tensor& from, at::Tensor* to);
  void TakeLayer(const Model& model, size_t layer);

  bool fp8_, own_;
  LayerStore* store_;
  at::ScalarType dtype_;
  at::Tensor one_;
  Model model_;  // detached; shared or copied
  std::vector<CudaLayer> layers_;
  std::vector<const void*> addresses_;  // of Tensors(), after the last Update
};

}  // namespace augur
