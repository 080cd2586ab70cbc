#include "rollout/cpu/weights.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/decode/decode_rows.h"

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
      WidenRowCpu(width, static_cast<const BFloat16*>(weight_.const_data_ptr()) + row * width, to);
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
    : config_(config), precision_(precision) {
  Allocate();
}

void CpuWeights::Allocate() {
  const ModelConfig& config = config_;
  const GemmFormat linear = LinearFormat(precision_), plain = HeadFormat(precision_);
  layers_.resize(config.layers);
  bytes_ = 0;
  auto take = [&](PackedWeights weight) {
    bytes_ += weight.outputs() * weight.width() * (weight.format() == GemmFormat::kFloat ? 4 : 2);
    return CpuLinear{std::move(weight), {}};
  };
  for (int64_t i = 0; i < config.layers; ++i) {
    for (const ModuleSpec& spec : LayerTable(config, i)) {
      if (spec.role == Role::kNorm) continue;
      const GemmFormat format = IsLinear(spec.role) ? linear : plain;
      for (int64_t e = 0; e < std::max<int64_t>(spec.experts, 1); ++e) {
        layers_[i][spec.slot].matrices.push_back(
            take(spec.slot == kGateUp ? PackedWeights::ForSwiglu(format, spec.rows() / 2, spec.in)
                                      : PackedWeights(format, spec.rows(), spec.in)));
      }
    }
  }
  head_ = take(PackedWeights(plain, config.vocab_size, config.hidden_size));
  if (!config.tied_head) embedding_ = PackedWeights(plain, config.vocab_size, config.hidden_size);
}

void CpuWeights::Release() {
  layers_.clear();
  head_ = CpuLinear();
  embedding_ = PackedWeights();
}

void CpuWeights::Load(const Model& model, LayerStore* store) {
  if (released()) Allocate();
  auto load_norm = [&](const at::Tensor& from, std::vector<float>* to) {
    LoadVector(from, precision_, from.numel(), to);
  };
  auto load = [&](const ModuleWeights& from, CpuModule* to) {
    if (!from.weight.defined()) return;
    if (to->matrices.empty()) return load_norm(from.weight, &to->norm);
    for (size_t e = 0; e < to->matrices.size(); ++e) {
      CpuLinear& matrix = to->matrices[e];
      const bool expert = from.weight.dim() == 3;
      LoadMatrix(expert ? from.weight.select(0, static_cast<int64_t>(e)) : from.weight, &matrix.weight);
      std::vector<float> bias;
      LoadVector(from.bias, precision_, matrix.weight.outputs(), &bias);
      matrix.bias.assign(bias.empty() ? 0 : matrix.weight.padded_outputs(), 0.0f);
      for (size_t i = 0; i < bias.size(); ++i) {
        matrix.bias[matrix.weight.Column(static_cast<int64_t>(i))] = bias[i];
      }
    }
  };
  for (size_t i = 0; i < layers_.size(); ++i) {
    const PartUse there(store, i, PartAfter(model, i));
    for (size_t slot = 0; slot < kSlots; ++slot) load(model.layers[i][slot], &layers_[i][slot]);
  }
  load_norm(model.norm, &norm_);
  {
    const PartUse there(store, HeadPart(model));
    LoadMatrix(model.head, &head_.weight);
  }
  if (config_.tied_head) return;
  const PartUse there(store, EmbeddingPart(model));
  LoadMatrix(model.embedding, &embedding_);
}

void CpuWeights::Embed(int32_t token, float* to) const {
  (config_.tied_head ? head_.weight : embedding_).GetRow(token, to);
}

}  // namespace augur
