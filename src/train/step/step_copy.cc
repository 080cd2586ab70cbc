#include "train/step/step_copy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <bit>
#include <utility>

#include "base/memory.h"
#include "base/tell.h"
#include "ops/parallel/ranks.h"

namespace augur {

int64_t PinnedBytes(int64_t bytes) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
}

bool StepCopy::Fits() {
  if (refused_ || !tensors_.empty()) return !refused_;
  int64_t bytes = 0;
  for (const at::Tensor& tensor : optimizer_.StateTensors()) {
    const auto size = static_cast<int64_t>(tensor.nbytes());
    bytes += tensor.is_cuda() ? PinnedBytes(size) : size;
  }
  // No rank has taken its copy before all have looked.
  refused_ = Ranks::World().Max(bytes > AvailableMemoryPerProcess() / 2 ? 1 : 0) > 0;
  if (refused_) {
    Tell(
        "augur: warning: {:.0f} GiB for a copy of the training state are not free: a signal amid a "
        "step's updates will go back to the last checkpoint\n",
        static_cast<double>(bytes) / (1 << 30));
  }
  return !refused_;
}

void StepCopy::Take() {
  if (std::exchange(taken_, true)) return;
  if (!Fits()) return;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> state = optimizer_.StateTensors();
  for (size_t i = 0; i < state.size(); ++i) {
    const bool gpu = state[i].is_cuda();
    if (i == tensors_.size()) {
      tensors_.push_back(at::empty(state[i].sizes(), state[i].options().device(at::kCPU).pinned_memory(gpu)));
    }
    tensors_[i].copy_(state[i], /*non_blocking=*/gpu);
  }
  updates_ = optimizer_.updates();
  bad_in_row_ = bad_updates_.in_row();
}

bool StepCopy::Restore() {
  if (!taken_) return true;
  if (refused_) return false;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> state = optimizer_.StateTensors();
  for (size_t i = 0; i < state.size(); ++i) state[i].copy_(tensors_[i]);
  optimizer_.Restored(updates_);
  bad_updates_.set_in_row(bad_in_row_);
  return true;
}

}  // namespace augur
