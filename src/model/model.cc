#include "model/model.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "model/rope.h"

namespace augur {
namespace {

// Allocates what one layer of the configuration needs.
class LayerMaker {
 public:
  LayerMaker(const ModelConfig& config, at::TensorOptions options) : config_(config), options_(options) {}

  LayerWeights Make(bool sparse) const {
    const ModelConfig& c = config_;
    LayerWeights layer;
    layer.input_norm = Empty({c.hidden_size});
    layer.qkv = Linear(c.q_width() + 2 * c.kv_width(), c.hidden_size, c.qkv_bias);
    if (c.qk_norm) {
      layer.q_norm = Empty({c.head_dim});
      layer.k_norm = Empty({c.head_dim});
    }
    layer.out = Linear(c.hidden_size, c.q_width(), c.out_bias);
    layer.post_attention_norm = Empty({c.hidden_size});
    if (sparse) {
      layer.router = Empty({c.moe.experts, c.hidden_size});
      layer.experts_gate_up = Empty({c.moe.experts, 2 * c.moe.intermediate_size, c.hidden_size});
      layer.experts_down = Empty({c.moe.experts, c.hidden_size, c.moe.intermediate_size});
    } else {
      layer.gate_up = Linear(2 * c.intermediate_size, c.hidden_size, c.mlp_bias);
      layer.down = Linear(c.hidden_size, c.intermediate_size, c.mlp_bias);
    }
    return layer;
  }

 private:
  at::Tensor Empty(at::IntArrayRef shape) const { return at::empty(shape, options_); }
  LinearWeights Linear(int64_t out, int64_t in, bool bias) const {
    return {Empty({out, in}), bias ? Empty({out}) : at::Tensor()};
  }

  const ModelConfig& config_;
  at::TensorOptions options_;
};

// Collects stored tensors under a common prefix.
class Collector {
 public:
  explicit Collector(std::vector<StoredTensor>* out) : out_(out) {}

  void Whole(std::string name, const at::Tensor& parameter) {
    if (parameter.defined()) out_->push_back({std::move(name), parameter, 0, parameter.size(0), -1});
  }

  // Rows `begin` to `begin + rows` of weight and bias under `prefix`.
  void Rows(const std::string& prefix, const LinearWeights& linear, int64_t begin, int64_t rows) {
    out_->push_back({prefix + ".weight", linear.weight, begin, rows, -1});
    if (linear.bias.defined()) out_->push_back({prefix + ".bias", linear.bias, begin, rows, -1});
  }

  void Expert(std::string name, const at::Tensor& parameter, int64_t expert, int64_t begin, int64_t rows) {
    out_->push_back({std::move(name), parameter, begin, rows, expert});
  }

 private:
  std::vector<StoredTensor>* out_;
};

void CollectMlp(const ModelConfig& config, const LayerWeights& layer, const std::string& prefix,
                Collector* out) {
  if (layer.router.defined()) {
    const int64_t inner = config.moe.intermediate_size;
    out->Whole(prefix + "gate.weight", layer.router);
    for (int64_t e = 0; e < config.moe.experts; ++e) {
      const std::string expert = fmt::format("{}experts.{}.", prefix, e);
      out->Expert(expert + "gate_proj.weight", layer.experts_gate_up, e, 0, inner);
      out->Expert(expert + "up_proj.weight", layer.experts_gate_up, e, inner, inner);
      out->Expert(expert + "down_proj.weight", layer.experts_down, e, 0, config.hidden_size);
    }
    return;
  }
  out->Rows(prefix + "gate_proj", layer.gate_up, 0, config.intermediate_size);
  out->Rows(prefix + "up_proj", layer.gate_up, config.intermediate_size, config.intermediate_size);
  out->Rows(prefix + "down_proj", layer.down, 0, config.hidden_size);
}

void CollectLayer(const ModelConfig& config, const LayerWeights& layer, const std::string& prefix,
                  Collector* out) {
  out->Whole(prefix + "input_layernorm.weight", layer.input_norm);
  const std::string attention = prefix + "self_attn.";
  out->Rows(attention + "q_proj", layer.qkv, 0, config.q_width());
  out->Rows(attention + "k_proj", layer.qkv, config.q_width(), config.kv_width());
  out->Rows(attention + "v_proj", layer.qkv, config.q_width() + config.kv_width(), config.kv_width());
  out->Rows(attention + "o_proj", layer.out, 0, config.hidden_size);
  out->Whole(attention + "q_norm.weight", layer.q_norm);
  out->Whole(attention + "k_norm.weight", layer.k_norm);
  out->Whole(prefix + "post_attention_layernorm.weight", layer.post_attention_norm);
  CollectMlp(config, layer, prefix + "mlp.", out);
}

}  // namespace

at::Tensor StoredTensor::Part(const at::Tensor& whole) const {
  return (expert < 0 ? whole : whole.select(0, expert)).narrow(0, begin_row, rows);
}

std::vector<int64_t> StoredTensor::Shape() const {
  std::vector<int64_t> shape = {rows};
  if (parameter.dim() > 1) shape.push_back(parameter.size(-1));
  return shape;
}

Model AllocateModel(const ModelConfig& config, at::ScalarType dtype, at::Device device) {
  const at::TensorOptions options = at::TensorOptions().dtype(dtype).device(device);
  Model model;
  model.config = config;
  model.embedding = at::empty({config.vocab_size, config.hidden_size}, options);
  const LayerMaker maker(config, options);
  for (int64_t i = 0; i < config.layers; ++i) model.layers.push_back(maker.Make(config.sparse[i]));
  model.norm = at::empty({config.hidden_size}, options);
  model.head =
      config.tied_head ? model.embedding : at::empty({config.vocab_size, config.hidden_size}, options);
  model.inverse_frequencies = InverseFrequencies(config).to(device);
  return model;
}

std::vector<StoredTensor> StoredTensors(const Model& model) {
  std::vector<StoredTensor> tensors;
  Collector collector(&tensors);
  collector.Whole("model.embed_tokens.weight", model.embedding);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    CollectLayer(model.config, model.layers[i], fmt::format("model.layers.{}.", i), &collector);
  }
  collector.Whole("model.norm.weight", model.norm);
  if (!model.config.tied_head) collector.Whole("lm_head.weight", model.head);
  return tensors;
}

std::vector<at::Tensor> LayerParameters(const LayerWeights& layer) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& tensor :
       {layer.input_norm, layer.qkv.weight, layer.qkv.bias, layer.q_norm, layer.k_norm, layer.out.weight,
        layer.out.bias, layer.post_attention_norm, layer.gate_up.weight, layer.gate_up.bias,
        layer.down.weight, layer.down.bias, layer.router, layer.experts_gate_up, layer.experts_down}) {
    if (tensor.defined()) parameters.push_back(tensor);
  }
  return parameters;
}

std::vector<at::Tensor> Parameters(const Model& model) {
  std::vector<at::Tensor> parameters = {model.embedding};
  for (const LayerWeights& layer : model.layers) {
    for (at::Tensor& tensor : LayerParameters(layer)) parameters.push_back(std::move(tensor));
  }
  parameters.push_back(model.norm);
  if (!model.config.tied_head) parameters.push_back(model.head);
  return parameters;
}

void SetRequiresGrad(const Model& model, bool requires_grad) {
  for (const at::Tensor& parameter : Parameters(model)) parameter.set_requires_grad(requires_grad);
}

}  // namespace augur
