// The training state as it was before a step's first update, so that the step can be given up amid its
// updates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "train/step/bad_updates.h"
#include "train/step/optimizer.h"

namespace augur {

// Host memory that a pinned tensor of so many bytes takes: torch rounds up to a power of two.
int64_t PinnedBytes(int64_t bytes);

// Kept in host memory, also where the state is on a GPU: 12 bytes a parameter, 8 with bf16 states. Where that
// is more than half of this process's share of what is free, nothing is kept.
class StepCopy {
 public:
  // Both must outlive this object.
  StepCopy(Optimizer& optimizer, BadUpdates& bad_updates)
      : optimizer_(optimizer), bad_updates_(bad_updates) {}

  // Once after each Forget; further calls do nothing.
  void Take();
  void Forget() { taken_ = false; }
  bool taken() const { return taken_; }
  // Puts the state back; false where the copy could not be taken. Without a Take since Forget there is
  // nothing to put back, and that is well.
  bool Restore();

 private:
  bool Fits();

  Optimizer& optimizer_;
  BadUpdates& bad_updates_;
  std::vector<at::Tensor> tensors_;
  int64_t updates_ = 0, bad_in_row_ = 0;
  bool taken_ = false;    // the step's updates began
  bool refused_ = false;  // for want of memory
};

}  // namespace augur
