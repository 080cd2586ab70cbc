// The forward pass for training and scoring, over packed sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/layer_store.h"
#include "model/model.h"
#include "ops/layer/attention.h"
#include "ops/layer/shared_prefixes.h"

namespace augur {

// Sequences of unequal length one after the other, without padding; what several begin with is there once.
struct PackedBatch {
  at::Tensor tokens;      // [N] int64
  at::Tensor cu_seqlens;  // [sequences + 1] int32, from 0 to the sequences' tokens, N where none is shared
  at::Tensor positions;   // of each of these, int32, within the sequence
  int64_t max_length = 0;
  SharedPrefixes shared;
  // [R] int64: the only tokens whose hidden states are wanted; undefined: all. The last layer spares itself
  // the others.
  at::Tensor rows;
};

// The first `length` tokens of a sequence, which sequence `of`, an earlier one that shares none itself,
// begins with as well; all that share with it have the same length.
struct Prefix {
  size_t of = 0;
  int64_t length = 0;
};

// No sequence may be empty. The tensors are made on `device`. `prefixes` has one entry a sequence, or none
// where nothing is shared; the batch then has the rest of each sequence after the one before.
PackedBatch PackSequences(std::span<const std::vector<int32_t>> sequences, at::Device device,
                          std::span<const Prefix> prefixes = {});

// The experts each token went through, by sparse layer: [N, experts_per_token] int64.
using Routing = std::vector<at::Tensor>;

struct ForwardOptions {
  // Keep only each layer's input for the backward and compute the layer again there: less memory, a third
  // more time. The results are the same. The Model must stay where it is until the backward has run.
  bool checkpoint_layers = false;
  // Keep no outputs of norms and SwiGLU, which the backward computes again: a quarter less memory for a few
  // percent of time. Has no effect with checkpoint_layers.
  bool recompute_cheap = false;
  // Round the factors of the layers' products, forward and backward, to FP8; see LinearOptions. The
  // embedding, the router and the head stay as they are.
  bool fp8 = false;
  // Send tokens through these experts instead of those the router would choose; one entry per sparse layer.
  const Routing* replay = nullptr;
  // Where the weights are while they are not used; null: in the model. Goes with checkpoint_layers. After a
  // forward the head is on its way: the caller must acquire it (PartUse).
  LayerStore* store = nullptr;
};

struct ForwardOutput {
  at::Tensor hidden;  // [N or R, hidden], after the final norm; the head is applied by the caller
  std::vector<at::Tensor> router_logits;  // by sparse layer: [N, experts], with gradient
  Routing routing;                        // the experts used
};

// Gradients flow to every parameter that requires them. Tokens must lie within the vocabulary.
ForwardOutput Forward(const Model& model, const PackedBatch& batch, const ForwardOptions& options = {});

}  // namespace augur
