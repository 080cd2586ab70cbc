#include "rollout/cpu/weights.h"

#include <ATen/Parallel.h>

namespace augur {
namespace {

// Rows of float32 or bfloat16 weights, as floats.
class WeightRows {
 public:
  explicit WeightRows(const at::Tensor& weight) : weight_(weight.detach().to(at::kCPU).contiguous()) {
    if (weight_.scalar_type() != at::kFloat && weight_.scalar_type() != at::kBFloat16) {
      weight_ = weight_.to(at::kFloat);
    }
  }

  void Read(int64_t row, int64_t width, float* to) const {
    if (weight_.scalar_type() == at::kFloat) {
      std::copy_n(weight_.const_data_ptr<float>() + row * width, width, to);
    } else {
      const auto* from = static_cast<const BFloat16*>(weight_.const_data_ptr()) + row * width;
      for (int64_t i = 0; i < width; ++i) to[i] = from[i];
    }
  }

 private:
  at::Tensor weight_;
};

void LoadMatrix(const at::Tensor& from, PackedWeights* to) {
  const WeightRows rows(from);
  at::parallel_for(0, to->outputs(), 64, [&](int64_t begin, int64_t end) {
    std::vector<float> values(to->width());
    for (int64_t row = begin; row < end; ++row) {
      rows.Read(row, to->width(), values.data());
      to->SetRow(row, values.data());
    }
  });
}

// A norm's weight or a bias, rounded to bfloat16 unless everything is float32.
void LoadVector(const at::Tensor& from, RolloutPrecision precision, int64_t size, std::vector<float>* to) {
  to->clear();
  if (!from.defined()) return;
  to->resize(size, 0.0f);
  WeightRows(from).Read(0, from.numel(), to->data());
  if (precision == RolloutPrecision::kFp32) return;
  for (float& value : *to) value = BFloat16::From(value);
}

}  // namespace

GemmFormat HeadFormat(RolloutPrecision precision) {
  return precision == RolloutPrecision::kFp32 ? GemmFormat::kFloat : GemmFormat::kBFloat16;
}

GemmFormat LinearFormat(RolloutPrecision precision) {
  return precision == RolloutPrecision::kFp8 ? GemmFormat::kFp8 : HeadFormat(precision);
}

CpuWeights::CpuWeights(const ModelConfig& config, RolloutPrecision precision)
    : config_(config), precision_(precision), layers_(config.layers) {
  const GemmFormat linear = LinearFormat(precision), plain = HeadFormat(precision);
  const int64_t hidden = config.hidden_size;
  auto take = [&](PackedWeights weight, CpuLinear* to) {
    bytes_ += weight.outputs() * weight.width() * (weight.format() == GemmFormat::kFloat ? 4 : 2);
    to->weight = std::move(weight);
  };
  auto allocate = [&](GemmFormat format, int64_t outputs, int64_t width, CpuLinear* to) {
    take(PackedWeights(format, outputs, width), to);
  };
  for (int64_t i = 0; i < config.layers; ++i) {
    CpuLayer& layer = layers_[i];
    allocate(linear, config.q_width() + 2 * config.kv_width(), hidden, &layer.qkv);
    allocate(linear, hidden, config.q_width(), &layer.out);
    if (config.sparse.empty() || !config.sparse[i]) {
      take(PackedWeights::ForSwiglu(linear, config.intermediate_size, hidden), &layer.gate_up);
      allocate(linear, hidden, config.intermediate_size, &layer.down);
      continue;
    }
    allocate(plain, config.moe.experts, hidden, &layer.router);
    layer.experts.resize(config.moe.experts);
    for (CpuExpert& expert : layer.experts) {
      allocate(linear, 2 * config.moe.intermediate_size, hidden, &expert.gate_up);
      allocate(linear, hidden, config.moe.intermediate_size, &expert.down);
    }
  }
  allocate(plain, config.vocab_size, hidden, &head_);
  if (!config.tied_head) embedding_ = PackedWeights(plain, config.vocab_size, hidden);
}

void CpuWeights::Load(const Model& model) {
  auto load = [&](const LinearWeights& from, CpuLinear* to) {
    LoadMatrix(from.weight, &to->weight);
    std::vector<float> bias;
    LoadVector(from.bias, precision_, to->weight.outputs(), &bias);
    to->bias.assign(bias.empty() ? 0 : to->weight.padded_outputs(), 0.0f);
    for (size_t i = 0; i < bias.size(); ++i) to->bias[to->weight.Column(static_cast<int64_t>(i))] = bias[i];
  };
  auto load_norm = [&](const at::Tensor& from, std::vector<float>* to) {
    LoadVector(from, precision_, from.defined() ? from.numel() : 0, to);
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& from = model.layers[i];
    CpuLayer& to = layers_[i];
    load_norm(from.input_norm, &to.input_norm);
    load_norm(from.post_attention_norm, &to.post_attention_norm);
    load_norm(from.q_norm, &to.q_norm);
    load_norm(from.k_norm, &to.k_norm);
    load(from.qkv, &to.qkv);
    load(from.out, &to.out);
    if (to.experts.empty()) {
      load(from.gate_up, &to.gate_up);
      load(from.down, &to.down);
      continue;
    }
    LoadMatrix(from.router, &to.router.weight);
    for (size_t e = 0; e < to.experts.size(); ++e) {
      const auto index = static_cast<int64_t>(e);
      LoadMatrix(from.experts_gate_up.select(0, index), &to.experts[e].gate_up.weight);
      LoadMatrix(from.experts_down.select(0, index), &to.experts[e].down.weight);
    }
  }
  load_norm(model.norm, &norm_);
  LoadMatrix(model.head, &head_.weight);
  if (!config_.tied_head) LoadMatrix(model.embedding, &embedding_);
}

void CpuWeights::Embed(int32_t token, float* to) const {
  (config_.tied_head ? head_.weight : embedding_).GetRow(token, to);
}

}  // namespace augur
