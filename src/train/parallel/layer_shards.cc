#include "train/parallel/layer_shards.h"

#include <ATen/core/grad_mode.h>

#include <utility>

namespace augur {
namespace {

// Of embedding, each layer, norm, and a head of its own.
std::vector<size_t> PartSizes(const Model& model) {
  std::vector<size_t> counts = {1};
  for (const LayerWeights& layer : model.layers) counts.push_back(LayerParameters(layer).size());
  counts.push_back(1);
  if (!model.config.tied_head) counts.push_back(1);
  return counts;
}

}  // namespace

LayerShards::LayerShards(const Model& model, const Ranks& ranks)
    : ranks_(ranks), layers_(model.layers.size()) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parameters = Parameters(model);
  buckets_ = MakeBuckets(parameters, ranks.size(), PartSizes(model));
  for (size_t b = 0; b < buckets_.size(); ++b) {
    flat_.push_back(MoveIntoBucket(buckets_[b], ranks.size(), &parameters));
    const at::Tensor piece = PieceOf(buckets_[b], flat_[b], ranks.rank());
    pieces_.push_back(IsWhole(b) ? piece : piece.clone());
  }
  started_.resize(parts());
  whole_.assign(parts(), true);
}

size_t LayerShards::BucketOf(size_t part) const {
  if (part < layers_) return part + 1;
  return part == layers_ ? 0 : layers_ + 2;
}

void LayerShards::Start(size_t part) {
  if (!whole_[part] && !started_[part].result.defined())
    started_[part] = ranks_.StartGather(pieces_[BucketOf(part)]);
}

void LayerShards::Acquire(size_t part, int64_t next) {
  Start(part);
  if (next >= 0) Start(static_cast<size_t>(next));
  if (whole_[part]) return;
  // The gathered memory becomes that of the buffer, of which the parameters are views.
  const at::Tensor& flat = flat_[BucketOf(part)];
  const at::Tensor gathered = ranks_.Finish(std::exchange(started_[part], {}), flat.device());
  flat.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      gathered.storage().unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, gathered.device())));
  whole_[part] = true;
}

void LayerShards::Release(size_t part) {
  const at::Tensor& flat = flat_[BucketOf(part)];
  flat.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, flat.device()));
  whole_[part] = false;
}

void LayerShards::TakeGradients(size_t layer, const std::vector<at::Tensor>& taken) {
  gradients(BucketOf(layer), taken);
}

void LayerShards::ReleaseAll() {
  for (size_t i = 0; i < parts(); ++i) {
    if (started_[i].result.defined()) ranks_.Finish(std::exchange(started_[i], {}), flat_[0].device());
    Release(i);
  }
}

}  // namespace augur
