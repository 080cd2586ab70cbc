// The layers of a model whose weights are spread over the ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "model/layer_store.h"
#include "ops/ranks.h"

namespace augur {

class LayerShards : public LayerStore {
 public:
  // A layer's parameters are views of `flat`, [ranks * piece]; `piece` is this rank's part, a tensor of its
  // own; `add` is given the gradient of the flat buffer.
  struct Layer {
    at::Tensor flat, piece;
    std::function<void(const std::vector<at::Tensor>& gradients)> add;
  };
  // Whole at first.
  LayerShards(const Ranks& ranks, std::vector<Layer> layers);

  void Acquire(size_t layer, int64_t next) override;
  void Release(size_t layer) override;
  void TakeGradients(size_t layer, const std::vector<at::Tensor>& gradients) override;

  size_t size() const { return layers_.size(); }
  void AcquireAll();
  // Whatever was acquired; the pieces may then change.
  void ReleaseAll();

 private:
  void Start(size_t layer);

  const Ranks ranks_;
  std::vector<Layer> layers_;
  std::vector<at::Tensor> pending_;  // gathers under way
  std::vector<bool> whole_;
};

// While it lives the model is whole; nothing is done where the store is null.
class WholeModel {
 public:
  explicit WholeModel(LayerShards* shards) : shards_(shards) {
    if (shards_ != nullptr) shards_->AcquireAll();
  }
  ~WholeModel() {
    if (shards_ != nullptr) shards_->ReleaseAll();
  }
  WholeModel(const WholeModel&) = delete;
  WholeModel& operator=(const WholeModel&) = delete;

 private:
  LayerShards* const shards_;
};

}  // namespace augur
