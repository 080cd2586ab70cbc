#include "analysis/state_copy.h"

#include <ATen/core/grad_mode.h>

namespace augur {

StateCopy::StateCopy(const Model& model, Optimizer& optimizer) : model_(model), optimizer_(optimizer) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : Parameters(model)) parameters_.push_back(parameter.detach().clone());
  for (const StateTensor& state : optimizer.State()) state_.push_back(state.tensor.clone());
  updates_ = optimizer.updates();
}

void StateCopy::Restore() const {
  const at::NoGradGuard no_grad;
  const std::vector<StateTensor> state = optimizer_.State();
  for (size_t i = 0; i < state.size(); ++i) state[i].tensor.copy_(state_[i]);
  optimizer_.Restored(updates_);
  const std::vector<at::Tensor> parameters = Parameters(model_);
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].detach().copy_(parameters_[i]);
}

}  // namespace augur
