// Weights of layers, embedding and head that are there only while they are used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/model.h"

namespace augur {

// Parts of a model: its layers by their numbers, then the embedding, then the head where it is not tied.
inline size_t EmbeddingPart(const Model& model) { return model.layers.size(); }
inline size_t HeadPart(const Model& model) { return model.layers.size() + (model.config.tied_head ? 0 : 1); }

// Each rank has a piece of every part; a part is gathered before its use, forward and backward, and given
// back after it. Every rank calls these in the same order.
class LayerStore {
 public:
  virtual ~LayerStore() = default;
  // Makes the part's weights usable, and begins to gather those of part `next`, which must be acquired
  // next; -1: none.
  virtual void Acquire(size_t part, int64_t next) = 0;
  virtual void Release(size_t part) = 0;
  // Takes the gradients of a layer's parameters, in the order of LayerParameters(); undefined: zeros. None
  // at all: this rank computed nothing.
  virtual void TakeGradients(size_t layer, const std::vector<at::Tensor>& gradients) = 0;
};

// While it lives, the part is there; nothing is done where the store is null.
class PartUse {
 public:
  PartUse(LayerStore* store, size_t part, int64_t next = -1) : store_(store), part_(part) {
    if (store_ != nullptr) store_->Acquire(part, next);
  }
  ~PartUse() {
    if (store_ != nullptr) store_->Release(part_);
  }
  PartUse(const PartUse&) = delete;
  PartUse& operator=(const PartUse&) = delete;

 private:
  LayerStore* const store_;
  const size_t part_;
};

// What comes after layer `layer` in a forward.
inline int64_t PartAfter(const Model& model, size_t layer) {
  return static_cast<int64_t>(layer + 1 < model.layers.size() ? layer + 1 : HeadPart(model));
}

// What a forward with its head, and a backward after it, asks of the store, by a rank that computes nothing
// meanwhile.
void PassParts(LayerStore& store, const Model& model, bool backward);

}  // namespace augur
