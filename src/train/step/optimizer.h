// AdamW over a model: float32 master weights and states, gradients summed over micro-batches, clipping by the
// global norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/model.h"
#include "ops/parallel/ranks.h"
#include "train/parallel/buckets.h"
#include "train/parallel/layer_shards.h"
#include "train/parallel/shard_groups.h"

namespace augur {

struct OptimizerOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;  // of every parameter, norms included, as torch.optim.AdamW does
  // Gradients are scaled down to this global norm where theirs is larger; 0 leaves them.
  double clip = 1.0;
  // Keep both averages in bfloat16, rounded at random so that their means are right: half the memory.
  bool bf16_states = false;
  // What gradients are added up in: bfloat16 is rounded likewise, and float64 once more after the last
  // addition, to float32, so that in whichever order they came the sum is the same.
  GradientDtype gradients = GradientDtype::kFp32;
  // What is divided among the ranks; not auto.
  Shard shard = Shard::kNone;
};

OptimizerOptions MakeOptimizerOptions(const OptimizerFields& fields, const ParallelSection& parallel = {});

struct UpdateResult {
  double grad_norm = 0;  // before clipping
  bool skipped = false;  // a gradient was not finite: nothing was changed
};

// A tensor of the training state under the name of its part of the model: "master.model.norm.weight",
// "first.…", "second.…". A view; writing to it changes the state. Where states are sharded, the flat part of
// it that this rank has.
struct StateTensor {
  std::string name;
  at::Tensor tensor;
  int64_t begin = 0;  // of the part, in elements
  int64_t whole = 0;  // elements of all parts
};

class Optimizer {
 public:
  // What of the model is trained (model.h) requires gradients from now on; adapters are merged again after
  // every update. A float32 model is its own master; of a bfloat16 one the master is a copy, and the model
  // follows it. The Model must outlive this object. Where states are sharded,
  // what is trained moves to other memory.
  Optimizer(const Model& model, const OptimizerOptions& options);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;  // the parameters know where it is
  Optimizer& operator=(const Optimizer&) = delete;

  // A backward adds each parameter's gradient to that of this update as soon as it is made, and frees it.
  // With one micro-batch nothing is copied. Accumulate takes gradients that stand in the parameters from
  // elsewhere.
  void Accumulate();
  // By a rank that is done with its micro-batches while others go on: each of its passes has one of theirs.
  void PassWithoutGradient();

  // For a minibatch in which nothing has a gradient: the update is that of zeros.
  void AccumulateZeros();

  // Makes the accumulated gradients those of all ranks together, rounded from float64 where they are in it.
  // Before Update, on every rank.
  void ReduceGradient();

  // Applies the accumulated gradients and forgets them.
  UpdateResult Update(double lr);

  // Makes the accumulated gradient not finite, so that Update skips it: for a loss that is not, and for
  // tests.
  void CorruptGradient();

  // Forgets the accumulated gradient.
  void DropGradient();

  // The gradients accumulated so far, in the order of TrainedParameters(); undefined where there is none.
  // Not where states are sharded.
  const std::vector<at::Tensor>& gradients() const { return gradients_; }

  bool sharded() const { return !buckets_.empty(); }
  // Of the layers' weights, where they are sharded too; otherwise null.
  LayerShards* layer_shards() const { return shards_.get(); }
  // Bytes of weights, master weights and averages that this rank keeps between updates.
  int64_t ResidentBytes() const;
  // Those that a sharded state is spread over.
  const Ranks& shard_ranks() const { return ranks_; }
  // Whether this rank has something to write to a checkpoint.
  bool writes_state() const { return sharded() ? across_.first() : ranks_.first(); }

  int64_t updates() const { return updates_; }
  // Everything a checkpoint must hold in addition to updates(), as far as this rank has it.
  std::vector<StateTensor> State() const;
  // The same values as whole tensors, whichever parts the model's files have; not copies.
  std::vector<at::Tensor> StateTensors() const;
  // After the tensors of State() have been filled: the model takes over the master's values.
  void Restored(int64_t updates);

 private:
  struct Hook;
  void Take(size_t i);
  void Add(const at::Tensor& grad, size_t i);
  // Gradients are spread over the ranks while the backward goes on, not after the last one.
  bool ScattersEarly() const { return sharded() && shards_ == nullptr; }
  void ScatterReady();
  void BeginPass();
  void EndPass();
  void ShardParameters();
  // Adapters train little, and the layers under them stay whole.
  bool ShardsLayers() const {
    return options_.shard == Shard::kFull && DividesState(options_.shard) && !model_.lora;
  }
  // The rank has all of the bucket's weights, not its piece alone.
  bool KeepsWhole(size_t bucket) const { return shards_ == nullptr || shards_->IsWhole(bucket); }
  at::Tensor FlatGradient(const Bucket& bucket, std::span<const at::Tensor> gradients) const;
  at::Tensor TakeFlatGradient(const Bucket& bucket);
  // Adds this rank's part of what its shard group has in all; other groups' are added once, in
  // ReduceGradient. It travels while the backward goes on, and is added after the next one was sent.
  void Scatter(size_t b, const at::Tensor& flat);
  void FinishScatters(size_t most_left);
  void ScatterBucket(size_t b) { Scatter(b, TakeFlatGradient(buckets_[b])); }
  void ReduceBucket(const Bucket& bucket, std::span<const double> found);
  void SumOverRanks();
  void RoundSums();
  at::ScalarType SumType() const;  // of gradients that travel
  void GatherWeights();
  std::vector<at::Tensor>& PieceGradients() { return sharded() ? reduced_ : gradients_; }
  double GradientNorm();
  void AddShardedState(const StoredTensor& stored, size_t parameter, std::vector<StateTensor>* state) const;
  void UpdateParameter(size_t i, double lr, double grad_scale);

  const Model& model_;
  const OptimizerOptions options_;
  const Ranks ranks_;                               // that share a state, or where none is shared all
  const Ranks across_;                              // that have the same part of it
  std::vector<at::Tensor> parameters_, gradients_;  // the model's
  std::vector<uint64_t> additions_;                 // to each gradient of this update
  // What this rank updates: the parameters, or where states are sharded its piece of each bucket.
  std::vector<at::Tensor> weights_, master_, first_, second_;
  std::vector<int64_t> places_;                             // of their first elements among all parameters'
  std::vector<Bucket> buckets_;                             // none: not sharded
  std::vector<at::Tensor> flat_;                            // the parameters of each bucket
  std::vector<at::Tensor> reduced_;                         // gradients of the pieces
  std::deque<std::pair<size_t, Ranks::Started>> scatters_;  // of buckets, under way
  std::vector<size_t> bucket_of_;                           // by parameter
  std::vector<size_t> missing_;          // gradients of each bucket that this backward has yet to make
  size_t unscattered_ = 0;               // buckets of this backward; the last goes first, on every rank
  std::unique_ptr<LayerShards> shards_;  // where weights are sharded, too
  int64_t updates_ = 0;
};

}  // namespace augur
