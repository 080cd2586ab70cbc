#include "train/step/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/adamw.h"
#include "kernels/add_at_random.h"
#include "model/adapter.h"
#include "ops/device.h"

namespace augur {
namespace {

ElementType TypeOf(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? ElementType::kBFloat16 : ElementType::kFloat;
}

bool IsMaster(const at::Tensor& parameter) { return parameter.scalar_type() == at::kFloat; }

void AddRounded(const at::Tensor& sum, const at::Tensor& added, RandomSum arrays) {
  arrays.sum = sum.mutable_data_ptr();
  arrays.added = added.const_data_ptr();
  arrays.added_type = TypeOf(added);
  arrays.size = sum.numel();
  if (sum.is_cuda()) {
    AddAtRandomCuda(arrays, CurrentStream(sum));
  } else {
    AddAtRandomCpu(arrays);
  }
}

}  // namespace

// Called by the backward when a parameter's gradient is whole.
struct Optimizer::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(Optimizer& optimizer, size_t index) : optimizer_(optimizer), index_(index) {}
  void operator()(const at::Tensor& /*parameter*/) override { optimizer_.Take(index_); }

  Optimizer& optimizer_;
  const size_t index_;
};

OptimizerOptions MakeOptimizerOptions(const OptimizerFields& fields) {
  return {.beta1 = fields.beta1,
          .beta2 = fields.beta2,
          .eps = fields.eps,
          .weight_decay = fields.weight_decay,
          .clip = fields.grad_clip,
          .bf16_states = fields.optimizer_dtype == StateDtype::kBf16,
          .bf16_gradients = fields.gradient_dtype == StateDtype::kBf16};
}

Optimizer::Optimizer(const Model& model, const OptimizerOptions& options)
    : model_(model),
      options_(options),
      parameters_(TrainedParameters(model)),
      gradients_(parameters_.size()) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_) {
    master_.push_back(IsMaster(parameter) ? parameter.detach() : parameter.detach().to(at::kFloat));
    const auto states =
        parameter.options().dtype(options.bf16_states ? at::kBFloat16 : at::kFloat).requires_grad(false);
    first_.push_back(at::zeros_like(parameter, states));
    second_.push_back(at::zeros_like(parameter, states));
  }
  SetRequiresGrad(model, true);
  additions_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i], std::make_unique<Hook>(*this, i));
  }
}

Optimizer::~Optimizer() {
  for (const at::Tensor& parameter : parameters_) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

void Optimizer::Take(size_t i) {
  const at::NoGradGuard no_grad;
  at::Tensor& grad = parameters_[i].mutable_grad();
  if (!grad.defined()) return;
  at::Tensor& sum = gradients_[i];
  if (options_.bf16_gradients) {
    if (!sum.defined() && grad.scalar_type() == at::kBFloat16) {
      sum = grad.contiguous();
    } else {
      if (!sum.defined())
        sum = at::zeros_like(grad, grad.options().dtype(at::kBFloat16), at::MemoryFormat::Contiguous);
      AddRounded(sum, grad.contiguous(),
                 {.key = i | ++additions_[i] << 40, .step = static_cast<uint64_t>(updates_)});
    }
  } else if (!sum.defined()) {
    sum = grad.contiguous();
  } else {
    if (sum.scalar_type() != at::kFloat) sum = sum.to(at::kFloat);
    sum.add_(grad);
  }
  grad.reset();
}

void Optimizer::Accumulate() {
  for (size_t i = 0; i < parameters_.size(); ++i) Take(i);
}

void Optimizer::AccumulateZeros() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!gradients_[i].defined()) gradients_[i] = at::zeros_like(parameters_[i].detach());
  }
}

void Optimizer::CorruptGradient() {
  for (at::Tensor& grad : gradients_) {
    if (!grad.defined()) continue;
    grad.flatten()[0].fill_(std::numeric_limits<double>::quiet_NaN());
    return;
  }
}

void Optimizer::DropGradient() {
  for (at::Tensor& grad : gradients_) grad.reset();
  std::ranges::fill(additions_, 0);
}

double Optimizer::GradientNorm() const {
  double squares = 0;
  std::vector<at::Tensor> norms;
  for (const at::Tensor& grad : gradients_) {
    if (!grad.defined()) continue;
    if (grad.is_cuda()) {
      norms.push_back(at::linalg_vector_norm(grad, 2, std::nullopt, false, at::kFloat));
    } else {
      squares += SquaredNormCpu(grad.const_data_ptr(), TypeOf(grad), grad.numel());
    }
  }
  if (!norms.empty()) return at::linalg_vector_norm(at::stack(norms).to(at::kDouble), 2).item<double>();
  return std::sqrt(squares);
}

void Optimizer::UpdateParameter(size_t i, double lr, double grad_scale) {
  const at::Tensor& grad = gradients_[i];
  const AdamWArrays arrays{
      .parameter = master_[i].mutable_data_ptr<float>(),
      .copy = IsMaster(parameters_[i]) ? nullptr : parameters_[i].mutable_data_ptr(),
      .gradient = grad.const_data_ptr(),
      .gradient_type = TypeOf(grad),
      .first = first_[i].mutable_data_ptr(),
      .second = second_[i].mutable_data_ptr(),
      .state_type = TypeOf(first_[i]),
      .size = grad.numel(),
  };
  const AdamWSettings settings{
      lr, options_.beta1, options_.beta2, options_.eps, options_.weight_decay, updates_, grad_scale, i};
  if (grad.is_cuda()) {
    AdamWCuda(arrays, settings, CurrentStream(grad));
  } else {
    AdamWCpu(arrays, settings);
  }
}

UpdateResult Optimizer::Update(double lr) {
  const at::NoGradGuard no_grad;
  UpdateResult result{.grad_norm = GradientNorm()};
  result.skipped = !std::isfinite(result.grad_norm);
  if (!result.skipped) {
    ++updates_;
    // torch.nn.utils.clip_grad_norm_ adds the same millionth.
    const double scale = options_.clip > 0 ? std::min(1.0, options_.clip / (result.grad_norm + 1e-6)) : 1.0;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (gradients_[i].defined()) UpdateParameter(i, lr, scale);
    }
    if (model_.lora) MergeAdapters(model_);
  }
  DropGradient();
  return result;
}

std::vector<StateTensor> Optimizer::State() const {
  std::vector<StateTensor> state;
  for (const StoredTensor& stored : TrainedTensors(model_)) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].is_same(stored.parameter)) continue;
      state.push_back({"master." + stored.name, stored.Part(master_[i])});
      state.push_back({"first." + stored.name, stored.Part(first_[i])});
      state.push_back({"second." + stored.name, stored.Part(second_[i])});
    }
  }
  return state;
}

std::vector<at::Tensor> Optimizer::StateTensors() const {
  std::vector<at::Tensor> tensors;
  for (const std::vector<at::Tensor>* kind : {&master_, &first_, &second_}) {
    tensors.insert(tensors.end(), kind->begin(), kind->end());
  }
  return tensors;
}

void Optimizer::Restored(int64_t updates) {
  const at::NoGradGuard no_grad;
  updates_ = updates;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!IsMaster(parameters_[i])) parameters_[i].copy_(master_[i]);
  }
  if (model_.lora) MergeAdapters(model_);
}

}  // namespace augur
