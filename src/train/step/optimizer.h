// AdamW over a model: float32 master weights and states, gradients summed over micro-batches, clipping by the
// global norm.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/model.h"

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
  // Add gradients up in bfloat16, rounded likewise; otherwise in float32.
  bool bf16_gradients = false;
};

OptimizerOptions MakeOptimizerOptions(const OptimizerFields& fields);

struct UpdateResult {
  double grad_norm = 0;  // before clipping
  bool skipped = false;  // a gradient was not finite: nothing was changed
};

// A tensor of the training state under the name of its part of the model: "master.model.norm.weight",
// "first.…", "second.…". A view; writing to it changes the state.
struct StateTensor {
  std::string name;
  at::Tensor tensor;
};

class Optimizer {
 public:
  // What of the model is trained (model.h) requires gradients from now on; adapters are merged again after
  // every update. A float32 model is its own master; of a bfloat16 one the master is a copy, and the model
  // follows it. The Model must outlive this object.
  Optimizer(const Model& model, const OptimizerOptions& options);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;  // the parameters know where it is
  Optimizer& operator=(const Optimizer&) = delete;

  // A backward adds each parameter's gradient to that of this update as soon as it is made, and frees it.
  // With one micro-batch nothing is copied. Accumulate takes gradients that stand in the parameters from
  // elsewhere.
  void Accumulate();

  // For a minibatch in which nothing has a gradient: the update is that of zeros.
  void AccumulateZeros();

  // Applies the accumulated gradients and forgets them.
  UpdateResult Update(double lr);

  // Makes the accumulated gradient not finite, so that Update skips it: for a loss that is not, and for
  // tests.
  void CorruptGradient();

  // Forgets the accumulated gradient.
  void DropGradient();

  // The gradients accumulated so far, in the order of TrainedParameters(); undefined where there is none.
  const std::vector<at::Tensor>& gradients() const { return gradients_; }

  int64_t updates() const { return updates_; }
  // Everything a checkpoint must hold beside updates().
  std::vector<StateTensor> State() const;
  // The same values as whole tensors, whichever parts the model's files have; not copies.
  std::vector<at::Tensor> StateTensors() const;
  // After the tensors of State() have been filled: the model takes over the master's values.
  void Restored(int64_t updates);

 private:
  struct Hook;
  void Take(size_t i);
  double GradientNorm() const;
  void UpdateParameter(size_t i, double lr, double grad_scale);

  const Model& model_;
  const OptimizerOptions options_;
  std::vector<at::Tensor> parameters_, master_, first_, second_, gradients_;
  std::vector<uint64_t> additions_;  // to each gradient of this update
  int64_t updates_ = 0;
};

}  // namespace augur
