// One decoder layer.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/model.h"
#include "ops/attention.h"
#include "ops/linear.h"

namespace augur {

// What a layer returns; the last two are undefined for a dense one.
struct LayerOutput {
  at::Tensor hidden;         // [N, hidden]
  at::Tensor router_logits;  // [N, experts]
  at::Tensor experts;        // [N, experts_per_token] int64
};

// x [N, hidden]; `replay` [N, experts_per_token] int64 fixes the experts of a sparse layer, or is undefined.
LayerOutput LayerForward(const ModelConfig& config, const LayerWeights& layer, const SequenceLayout& layout,
                         const at::Tensor& x, const at::Tensor& replay, const LinearOptions& products);

// The same, keeping x alone for the backward, which computes the layer again (with the experts chosen now).
// config and layer must stay where they are until then.
LayerOutput CheckpointedLayerForward(const ModelConfig& config, const LayerWeights& layer,
                                     const SequenceLayout& layout, const at::Tensor& x,
                                     const at::Tensor& replay, const LinearOptions& products);

}  // namespace augur
