#include "train/parallel/layer_shards.h"

#include <utility>

namespace augur {

LayerShards::LayerShards(const Ranks& ranks, std::vector<Layer> layers)
    : ranks_(ranks), layers_(std::move(layers)), pending_(layers_.size()), whole_(layers_.size(), true) {}

void LayerShards::Start(size_t layer) {
  if (!whole_[layer] && !pending_[layer].defined())
    pending_[layer] = ranks_.StartGather(layers_[layer].piece);
}

void LayerShards::Acquire(size_t layer, int64_t next) {
  Start(layer);
  if (next >= 0) Start(static_cast<size_t>(next));
  if (whole_[layer]) return;
  // The gathered memory becomes that of the buffer, of which the parameters are views.
  const at::Tensor gathered = ranks_.FinishGather(std::exchange(pending_[layer], {}), layers_[layer].piece);
  layers_[layer].flat.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      gathered.storage().unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, gathered.device())));
  whole_[layer] = true;
}

void LayerShards::Release(size_t layer) {
  const at::Tensor& flat = layers_[layer].flat;
  flat.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, flat.device()));
  whole_[layer] = false;
}

void LayerShards::TakeGradients(size_t layer, const std::vector<at::Tensor>& gradients) {
  layers_[layer].add(gradients);
}

void LayerShards::AcquireAll() {
  for (size_t i = 0; i < size(); ++i) Acquire(i, i + 1 < size() ? static_cast<int64_t>(i) + 1 : -1);
}

void LayerShards::ReleaseAll() {
  for (size_t i = 0; i < size(); ++i) Release(i);
}

}  // namespace augur
