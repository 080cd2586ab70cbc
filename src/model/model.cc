#include "model/model.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "model/rope.h"

namespace augur {
namespace {

LayerWeights AllocateLayer(const std::vector<ModuleSpec>& table, const at::TensorOptions& options) {
  LayerWeights layer;
  for (const ModuleSpec& spec : table) {
    layer[spec.slot].weight = at::empty(spec.shape(), options);
    if (spec.bias) layer[spec.slot].bias = at::empty({spec.rows()}, options);
  }
  return layer;
}

// "mlp.experts.{}.up_proj" with the expert's number.
std::string ExpertName(const std::string& name, int64_t expert) {
  const size_t place = name.find("{}");
  return name.substr(0, place) + std::to_string(expert) + name.substr(place + 2);
}

void CollectModule(const ModuleSpec& spec, const ModuleWeights& module, const std::string& prefix,
                   std::vector<StoredTensor>* out) {
  for (int64_t e = 0; e < std::max<int64_t>(spec.experts, 1); ++e) {
    const int64_t expert = spec.experts > 0 ? e : -1;
    int64_t begin = 0;
    for (const StoredModule& part : spec.parts) {
      const std::string name = prefix + (expert < 0 ? part.name : ExpertName(part.name, expert));
      out->push_back({name + ".weight", module.weight, spec.role, false, begin, part.rows, expert});
      if (spec.bias) out->push_back({name + ".bias", module.bias, spec.role, true, begin, part.rows, expert});
      begin += part.rows;
    }
  }
}

}  // namespace

at::Tensor StoredTensor::Part(const at::Tensor& whole) const {
  return (expert < 0 ? whole : whole.select(0, expert)).narrow(0, begin_row, rows);
}

std::vector<int64_t> StoredTensor::Shape() const {
  std::vector<int64_t> shape = {rows};
  for (int64_t i = expert < 0 ? 1 : 2; i < parameter.dim(); ++i) shape.push_back(parameter.size(i));
  return shape;
}

Model AllocateModel(const ModelConfig& config, at::ScalarType dtype, at::Device device) {
  const at::TensorOptions options = at::TensorOptions().dtype(dtype).device(device);
  Model model;
  model.config = config;
  model.embedding = at::empty({config.vocab_size, config.hidden_size}, options);
  for (int64_t i = 0; i < config.layers; ++i) {
    model.layers.push_back(AllocateLayer(LayerTable(config, i), options));
  }
  model.norm = at::empty({config.hidden_size}, options);
  model.head =
      config.tied_head ? model.embedding : at::empty({config.vocab_size, config.hidden_size}, options);
  model.inverse_frequencies = InverseFrequencies(config).to(device);
  return model;
}

std::vector<StoredTensor> StoredTensors(const Model& model) {
  std::vector<StoredTensor> tensors;
  const auto add = [&](const OuterModule& module, const at::Tensor& parameter) {
    tensors.push_back(
        {fmt::format("{}.weight", module.name), parameter, module.role, false, 0, parameter.size(0)});
  };
  add(kEmbeddingModule, model.embedding);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    for (const ModuleSpec& spec : LayerTable(model.config, static_cast<int64_t>(i))) {
      CollectModule(spec, model.layers[i][spec.slot], prefix, &tensors);
    }
  }
  add(kFinalNormModule, model.norm);
  if (!model.config.tied_head) add(kHeadModule, model.head);
  return tensors;
}

std::vector<at::Tensor> LayerParameters(const LayerWeights& layer) {
  std::vector<at::Tensor> parameters;
  for (const ModuleWeights& module : layer) {
    if (module.weight.defined()) parameters.push_back(module.weight);
    if (module.bias.defined()) parameters.push_back(module.bias);
    for (at::Tensor& factor : FactorsOf(module.adapters)) parameters.push_back(std::move(factor));
  }
  return parameters;
}

std::vector<at::Tensor> Parameters(const Model& model) {
  std::vector<at::Tensor> parameters = {model.embedding};
  for (const LayerWeights& layer : model.layers) {
    for (const ModuleWeights& module : layer) {
      if (module.weight.defined()) parameters.push_back(module.weight);
      if (module.bias.defined()) parameters.push_back(module.bias);
    }
  }
  parameters.push_back(model.norm);
  if (!model.config.tied_head) parameters.push_back(model.head);
  return parameters;
}

std::vector<StoredTensor> TrainedTensors(const Model& model) {
  if (!model.lora) return StoredTensors(model);
  std::vector<StoredTensor> tensors;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    for (const ModuleSpec& spec : LayerTable(model.config, static_cast<int64_t>(i))) {
      for (const LowRank& part : model.layers[i][spec.slot].adapters) {
        const std::string name = fmt::format("model.layers.{}.{}.lora_", i, part.name);
        tensors.push_back({name + "A.weight", part.a, spec.role, false, 0, part.a.size(0)});
        tensors.push_back({name + "B.weight", part.b, spec.role, false, 0, part.b.size(0)});
      }
    }
  }
  for (const WholeModule& module : model.lora->whole) {
    tensors.push_back({module.name + ".weight", module.weight, module.role, false, 0, module.weight.size(0)});
  }
  return tensors;
}

std::vector<at::Tensor> TrainedParameters(const Model& model) {
  if (!model.lora) return Parameters(model);
  std::vector<at::Tensor> parameters;
  for (const StoredTensor& tensor : TrainedTensors(model)) parameters.push_back(tensor.parameter);
  return parameters;
}

void SetRequiresGrad(const Model& model, bool requires_grad) {
  for (const at::Tensor& parameter : Parameters(model)) parameter.set_requires_grad(false);
  for (const at::Tensor& parameter : TrainedParameters(model)) parameter.set_requires_grad(requires_grad);
}

}  // namespace augur
