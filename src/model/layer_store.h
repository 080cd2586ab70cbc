// Weights of layers that are there only while they are used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace augur {

// Each rank has a part of every layer; a layer is gathered before its use, forward and backward, and given
// back after it. Every rank calls these in the same order.
class LayerStore {
 public:
  virtual ~LayerStore() = default;
  // Makes the layer's weights usable, and begins to gather those of layer `next`; -1: none.
  virtual void Acquire(size_t layer, int64_t next) = 0;
  virtual void Release(size_t layer) = 0;
  // Takes the gradients of the layer's parameters, in the order of LayerParameters(); undefined: zeros. None
  // at all: this rank computed nothing.
  virtual void TakeGradients(size_t layer, const std::vector<at::Tensor>& gradients) = 0;
};

// What a forward, and a backward after it, asks of the store, by a rank that computes nothing meanwhile.
void PassLayers(LayerStore& store, size_t layers, bool backward);

}  // namespace augur
