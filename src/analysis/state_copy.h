// The whole state of training, to be put back bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/model.h"
#include "train/step/optimizer.h"

namespace augur {

// What an optimizer update changes: parameters, master weights, both averages, the number of updates.
class StateCopy {
 public:
  // Copies. Both must outlive this object.
  StateCopy(const Model& model, Optimizer& optimizer);
  // Puts everything back as it was copied.
  void Restore() const;

  // The tensors of Optimizer::State() as they were, in its order.
  const std::vector<at::Tensor>& state() const { return state_; }
  int64_t updates() const { return updates_; }

 private:
  const Model& model_;
  Optimizer& optimizer_;
  std::vector<at::Tensor> parameters_, state_;
  int64_t updates_ = 0;
};

}  // namespace augur
