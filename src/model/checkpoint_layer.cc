#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "model/layer.h"

namespace augur {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What the second computation needs in addition to the input.
struct Recipe : torch::CustomClassHolder {
  const ModelConfig* config;
  const LayerWeights* layer;
  SequenceLayout layout;
  LayerOptions options;  // experts chosen in the first computation are replayed in the second

  LayerOutput Compute(const at::Tensor& x) const { return LayerForward(*config, *layer, layout, x, options); }
};
using RecipePointer = c10::intrusive_ptr<Recipe>;

struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  // The parameters are the layer's, listed so that autograd passes their gradients on.
  static variable_list forward(AutogradContext* context, const at::Tensor& x, at::TensorList /*parameters*/,
                               const RecipePointer& recipe) {
    const LayerOutput out = recipe->Compute(x);
    recipe->options.replay = out.experts;
    context->saved_data["recipe"] = c10::IValue::make_capsule(recipe);
    context->save_for_backward({x});
    context->set_materialize_grads(false);
    if (!out.router_logits.defined()) return {out.hidden};
    return {out.hidden, out.router_logits};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto recipe = context->saved_data["recipe"].toCapsule();
    const auto* known = static_cast<const Recipe*>(recipe.get());
    const at::AutoGradMode recording(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    LayerStore* const store = known->options.store;
    const size_t layer = known->options.layer;
    const PartUse there(store, layer, static_cast<int64_t>(layer) - 1);
    const LayerOutput out = known->Compute(x);
    variable_list outputs, output_grads;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      outputs.push_back(i == 0 ? out.hidden : out.router_logits);
      output_grads.push_back(grads[i]);
    }
    const variable_list parameters = LayerParameters(*known->layer);
    variable_list inputs = {x};
    for (const at::Tensor& parameter : parameters) {
      if (parameter.requires_grad()) inputs.push_back(parameter);
    }
    const variable_list found = torch::autograd::grad(outputs, inputs, output_grads, /*retain_graph=*/false,
                                                      /*create_graph=*/false, /*allow_unused=*/true);
    variable_list result = {found[0]};
    size_t next = 1;
    variable_list gradients;
    for (const at::Tensor& parameter : parameters) {
      gradients.push_back(parameter.requires_grad() ? found[next++] : at::Tensor());
    }
    if (store != nullptr) {
      store->TakeGradients(layer, gradients);
      gradients.assign(parameters.size(), at::Tensor());
    }
    result.insert(result.end(), gradients.begin(), gradients.end());
    result.emplace_back();  // the recipe has no gradient
    return result;
  }
};

}  // namespace

LayerOutput CheckpointedLayerForward(const ModelConfig& config, const LayerWeights& layer,
                                     const SequenceLayout& layout, const at::Tensor& x,
                                     const LayerOptions& options) {
  const RecipePointer recipe = c10::make_intrusive<Recipe>();
  recipe->config = &config;
  recipe->layer = &layer;
  recipe->layout = layout;
  recipe->options = options;
  const std::vector<at::Tensor> parameters = LayerParameters(layer);
  const variable_list out = CheckpointFunction::apply(x, at::TensorList(parameters), recipe);
  return {out[0], out.size() > 1 ? out[1] : at::Tensor(), recipe->options.replay};
}

}  // namespace augur
