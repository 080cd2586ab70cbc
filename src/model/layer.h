// One decoder layer.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/layer_store.h"
#include "model/model.h"
#include "ops/layer/attention.h"
#include "ops/layer/linear.h"
#include "ops/layer/shared_prefixes.h"

namespace augur {

// What a layer returns; the last two are undefined for a dense one.
struct LayerOutput {
  at::Tensor hidden;         // [N, hidden], or the rows asked for
  at::Tensor router_logits;  // [N, experts]
  at::Tensor experts;        // [N, experts_per_token] int64
};

// What a layer works with, apart from its input.
struct LayerOptions {
  at::Tensor replay;      // [N, experts_per_token] int64: the experts of a sparse layer, or undefined
  at::Tensor rows;        // int64: the only rows that go on after attention, in a dense layer; undefined: all
  SharedPrefixes shared;  // of the input's rows, among the layout's sequences
  LinearOptions products;
  LayerStore* store = nullptr;  // of the weights, where they are not always there
  size_t layer = 0;             // its number in the store
};

// x [N, hidden].
LayerOutput LayerForward(const ModelConfig& config, const LayerWeights& layer, const SequenceLayout& layout,
                         const at::Tensor& x, const LayerOptions& options);

// The same, keeping x alone for the backward, which computes the layer again (with the experts chosen now).
// config and layer must stay where they are until then.
LayerOutput CheckpointedLayerForward(const ModelConfig& config, const LayerWeights& layer,
                                     const SequenceLayout& layout, const at::Tensor& x,
                                     const LayerOptions& options);

}  // namespace augur
