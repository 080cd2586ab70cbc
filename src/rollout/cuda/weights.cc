#include "rollout/cuda/weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <set>
#include <utility>

#include "kernels/layer/quantise_rows.h"
#include "ops/device.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

// weight [..., out, in], rounded by output channel, where `to` stands already or to new memory.
void Quantise(const at::Tensor& weight, Fp8Rows* to) {
  const auto options = weight.options();
  if (!to->values.defined()) {
    to->values = at::empty(weight.sizes(), options.dtype(at::kFloat8_e4m3fn));
    to->scale = at::empty(weight.sizes().slice(0, weight.dim() - 1), options.dtype(at::kFloat));
  }
  WithElementType(weight, [&]<typename T>(T) {
    QuantiseRowsCuda(to->scale.numel(), weight.size(-1), ConstData<T>(weight), Data<uint8_t>(to->values),
                     Data<float>(to->scale), CurrentStream(weight));
  });
}

void Quantise(const at::Tensor& weight, CudaLinear* to) {
  Fp8Rows rows{to->weight, to->scale};
  Quantise(weight, &rows);
  to->weight = rows.values;
  to->scale = rows.scale.view({1, -1});
}

}  // namespace

CudaWeights::CudaWeights(const Model& model, RolloutPrecision precision, bool own, LayerStore* store)
    : fp8_(precision == RolloutPrecision::kFp8),
      own_(own || store != nullptr),
      store_(store),
      dtype_(precision == RolloutPrecision::kFp32 ? at::kFloat : at::kBFloat16),
      one_(at::ones({}, model.embedding.options().dtype(at::kFloat).requires_grad(false))) {
  Update(model);
}

void CudaWeights::Take(const at::Tensor& from, at::Tensor* to) {
  if (!from.defined()) return;
  if (!own_ && from.scalar_type() == dtype_ && from.is_contiguous()) {
    *to = from.detach();
  } else if (!to->defined()) {
    *to = from.detach().to(dtype_, /*non_blocking=*/false, /*copy=*/true).contiguous();
  } else {
    to->copy_(from);
  }
}

void CudaWeights::TakeLayer(const Model& model, size_t layer) {
  const LayerWeights& theirs = model.layers[layer];
  LayerWeights& mine = model_.layers[layer];
  CudaLayer& linears = layers_[layer];
  std::array<bool, kSlots> rounded{};
  // Straight from the model's weights: of those that compute in FP8 nothing else is kept, and the model's
  // structure shows the sizes of what is.
  const auto round = [&](Slot slot, auto* to, const at::Tensor& values) {
    Quantise(theirs[slot].weight.detach().to(dtype_).contiguous(), to);
    mine[slot].weight = values;
    rounded[slot] = true;
  };
  const at::Tensor &gate_up = theirs[kExpertsGateUp].weight, &down = theirs[kExpertsDown].weight;
  if (fp8_ && theirs.sparse() && HasFp8GroupedProduct(gate_up) && HasFp8GroupedProduct(down)) {
    round(kExpertsGateUp, &linears.experts_gate_up, linears.experts_gate_up.values);
    round(kExpertsDown, &linears.experts_down, linears.experts_down.values);
  }
  for (const ModuleSpec& spec : LayerTable(model_.config, static_cast<int64_t>(layer))) {
    CudaLinear& to = linears[spec.slot];
    const bool linear = IsLinear(spec.role) && spec.experts == 0;
    if (linear && fp8_) round(spec.slot, &to, to.weight);
    if (!rounded[spec.slot]) Take(theirs[spec.slot].weight, &mine[spec.slot].weight);
    Take(theirs[spec.slot].bias, &mine[spec.slot].bias);
    if (!linear) continue;
    to.weight = mine[spec.slot].weight;
    to.bias = mine[spec.slot].bias;
  }
}

bool CudaWeights::Update(const Model& model) {
  const at::NoGradGuard no_grad;
  if (layers_.empty()) {
    model_ = model;  // for the structure; the weights are taken below
    ForgetWeights();
    layers_.resize(model.layers.size());
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const PartUse there(store_, i, PartAfter(model, i));
    TakeLayer(model, i);
  }
  Take(model.norm, &model_.norm);
  {
    const PartUse there(store_, HeadPart(model));
    Take(model.head, &model_.head);
  }
  if (model.config.tied_head) {
    model_.embedding = model_.head;
  } else {
    const PartUse there(store_, EmbeddingPart(model));
    Take(model.embedding, &model_.embedding);
  }
  std::vector<const void*> addresses;
  for (const at::Tensor& tensor : Tensors()) addresses.push_back(tensor.const_data_ptr());
  return std::exchange(addresses_, addresses) != addresses;
}

void CudaWeights::ForgetWeights() {
  layers_.clear();
  model_.embedding = model_.norm = model_.head = at::Tensor();
  for (LayerWeights& layer : model_.layers) {
    for (ModuleWeights& module : layer) module.weight = module.bias = at::Tensor();
  }
}

int64_t CudaWeights::bytes() const {
  std::set<const void*> seen;
  int64_t bytes = 0;
  for (const at::Tensor& tensor : Tensors()) {
    const bool shared = !own_ && tensor.scalar_type() == dtype_;
    if (!shared && seen.insert(tensor.const_data_ptr()).second)
      bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

std::vector<at::Tensor> CudaWeights::Tensors() const {
  std::vector<at::Tensor> tensors;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined()) tensors.push_back(tensor);
  };
  for (const at::Tensor& tensor : {model_.head, model_.embedding, model_.norm}) add(tensor);
  for (const LayerWeights& layer : model_.layers) {
    for (const ModuleWeights& module : layer) {
      add(module.weight);
      add(module.bias);
    }
  }
  for (const CudaLayer& layer : layers_) {
    for (const CudaLinear& linear : layer) {
      add(linear.weight);
      add(linear.scale);
    }
    for (const Fp8Rows& experts : {layer.experts_gate_up, layer.experts_down}) {
      add(experts.values);
      add(experts.scale);
    }
  }
  return tensors;
}

}  // namespace augur
