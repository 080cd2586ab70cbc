#include "model/forward.h"

#include <ATen/ops/embedding.h>

#include <algorithm>

#include "base/error.h"
#include "base/stop_signals.h"
#include "model/layer.h"
#include "model/rope.h"
#include "ops/layer/rms_norm.h"
#include "ops/typed_data.h"

namespace augur {

PackedBatch PackSequences(std::span<const std::vector<int32_t>> sequences, at::Device device,
                          std::span<const Prefix> prefixes) {
  std::vector<int64_t> tokens, sources, places;
  std::vector<int32_t> bounds = {0}, positions;
  std::vector<int64_t> first_rows;  // of each sequence's own tokens
  PackedBatch batch;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const std::vector<int32_t>& sequence = sequences[s];
    const auto length = static_cast<int64_t>(sequence.size());
    const Prefix prefix = prefixes.empty() ? Prefix{} : prefixes[s];
    first_rows.push_back(static_cast<int64_t>(tokens.size()));
    if (prefix.length > 0) {
      batch.shared.copies.push_back(
          {first_rows[prefix.of], static_cast<int64_t>(positions.size()), prefix.length});
    }
    for (int64_t i = 0; i < length; ++i) {
      if (i < prefix.length) {
        sources.push_back(first_rows[prefix.of] + i);
      } else {
        sources.push_back(static_cast<int64_t>(tokens.size()));
        places.push_back(static_cast<int64_t>(positions.size()));
        tokens.push_back(sequence[i]);
      }
      positions.push_back(static_cast<int32_t>(i));
    }
    bounds.push_back(static_cast<int32_t>(positions.size()));
    batch.max_length = std::max(batch.max_length, length);
  }
  std::ranges::stable_sort(batch.shared.copies, {}, &PrefixCopy::row);
  if (!batch.shared.copies.empty()) {
    batch.shared.sources = ToDevice(sources, device);
    batch.shared.places = ToDevice(places, device);
  }
  batch.tokens = ToDevice(tokens, device);
  batch.cu_seqlens = ToDevice(bounds, device);
  batch.positions = ToDevice(positions, device);
  return batch;
}

ForwardOutput Forward(const Model& model, const PackedBatch& batch, const ForwardOptions& options) {
  const ModelConfig& config = model.config;
  const RotationTable table = MakeRotationTable(model.inverse_frequencies, batch.max_length);
  const SequenceLayout rotated{batch.cu_seqlens, batch.positions, batch.max_length, table.cos, table.sin};
  SequenceLayout unrotated = rotated;
  if (std::ranges::count(config.rotary, false) > 0) {
    const RotationTable none = WithoutRotation(table);
    unrotated.cos = none.cos;
    unrotated.sin = none.sin;
  }
  const auto sparse_layers = std::ranges::count(config.sparse, true);
  if (options.replay != nullptr && static_cast<int64_t>(options.replay->size()) != sparse_layers) {
    throw Error("routing replay",
                fmt::format("has {} layers, the model {} sparse ones", options.replay->size(), sparse_layers),
                "replay what the same model recorded");
  }
  ForwardOutput out;
  at::Tensor hidden;
  {
    const PartUse embedding(options.store, EmbeddingPart(model), 0);
    hidden = at::embedding(model.embedding, batch.tokens, config.pad_token);
  }
  const LinearOptions products{.recompute = options.recompute_cheap && !options.checkpoint_layers,
                               .fp8 = options.fp8};
  const auto forward = options.checkpoint_layers ? CheckpointedLayerForward : LayerForward;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    CheckStop();
    const LayerWeights& layer = model.layers[i];
    const bool replays = options.replay != nullptr && layer.sparse();
    const bool selects = i + 1 == model.layers.size() && !layer.sparse();
    const LayerOptions here{.replay = replays ? (*options.replay)[out.routing.size()] : at::Tensor(),
                            .rows = selects ? batch.rows : at::Tensor(),
                            .shared = batch.shared,
                            .products = products,
                            .store = options.store,
                            .layer = i};
    const PartUse there(options.store, i, PartAfter(model, i));
    const LayerOutput result = forward(config, layer, config.rotary[i] ? rotated : unrotated, hidden, here);
    hidden = result.hidden;
    if (hidden.requires_grad()) hidden.register_hook([](const at::Tensor&) { CheckStop(); });
    if (!layer.sparse()) continue;
    out.router_logits.push_back(result.router_logits);
    out.routing.push_back(result.experts);
  }
  const bool selected = !model.layers.empty() && !model.layers.back().sparse();
  if (batch.rows.defined() && !selected) hidden = hidden.index_select(0, batch.rows);
  out.hidden = RmsNorm(hidden, model.norm, config.rms_norm_eps);
  return out;
}

}  // namespace augur
