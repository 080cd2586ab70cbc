// A model whose weights are spread over the ranks: layers, embedding and head; the final norm, which is
// small, every rank has.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "model/layer_store.h"
#include "ops/parallel/ranks.h"
#include "train/parallel/buckets.h"

namespace augur {

class LayerShards : public LayerStore {
 public:
  // The parameters become views of a buffer for each bucket. Whole at first.
  LayerShards(const Model& model, const Ranks& ranks);

  void Acquire(size_t part, int64_t next) override;
  void Release(size_t part) override;
  void TakeGradients(size_t layer, const std::vector<at::Tensor>& gradients) override;

  // Whatever was acquired; the pieces may then change.
  void ReleaseAll();

  // Of Parameters(model), in their order: embedding, each layer, norm, head.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  bool IsLayer(size_t bucket) const { return bucket > 0 && bucket <= layers_; }
  bool IsWhole(size_t bucket) const { return bucket == layers_ + 1; }
  const std::vector<at::Tensor>& flat() const { return flat_; }      // of each bucket, [ranks * piece]
  const std::vector<at::Tensor>& pieces() const { return pieces_; }  // this rank's, tensors of their own

  // Is given the gradients of the layer in this bucket.
  std::function<void(size_t bucket, const std::vector<at::Tensor>& gradients)> gradients;

 private:
  size_t parts() const { return flat_.size() - 1; }
  size_t BucketOf(size_t part) const;
  void Start(size_t part);

  const Ranks ranks_;
  const size_t layers_;
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> flat_, pieces_;
  std::vector<Ranks::Started> started_;  // gathers under way, by part
  std::vector<bool> whole_;              // by part
};

}  // namespace augur
