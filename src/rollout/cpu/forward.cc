#include "rollout/cpu/forward.h"

#include <algorithm>

#include "base/stop_signals.h"
#include "kernels/decode/decode_rows.h"
#include "kernels/layer/fp8.h"
#include "kernels/simd/parallel_work.h"
#include "kernels/thread_team.h"
#include "rollout/cpu/moe.h"

namespace augur {

template <typename T>
CpuForward<T>::CpuForward(const ModelConfig& config, RolloutPrecision precision, KvPrecision kv_precision,
                          StepThreads* threads, PartTimer* parts)
    : config_(config),
      threads_(*threads),
      kv_fp8_(kv_precision == KvPrecision::kFp8),
      parts_(parts),
      operand_(LinearFormat(precision)),
      inner_(LinearFormat(precision)),
      router_operand_(HeadFormat(precision)),
      ones_(config.head_dim / 2, 1.0f),
      zeros_(config.head_dim / 2, 0.0f) {}

template <typename T>
void CpuForward<T>::Multiply(const GemmRows& rows, const CpuLinear& linear, std::vector<float>* out,
                             int64_t* stride) {
  *stride = linear.weight.padded_outputs();
  const auto size = static_cast<size_t>(rows.rows() * *stride);
  if (out->size() < size) out->resize(size);
  PackedGemm(rows, linear.weight, linear.bias_or_null(), std::is_same_v<T, BFloat16>, out->data(), *stride);
}

template <typename T>
void CpuForward<T>::AddNorm(const std::vector<float>& weight, const float* added, int64_t added_stride,
                            int64_t rows, GemmRows* to) {
  const int64_t hidden = config_.hidden_size;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  if (to != nullptr) to->Resize(rows, hidden);
  ParallelFor(rows, WorthThreads(rows * hidden * 8), [&](int64_t r) {
    float *x = x_.data() + r * hidden, *normal = normal_.data() + r * hidden;
    const float* more = added == nullptr ? nullptr : added + r * added_stride;
    if (!weight.empty()) {
      AddNormRowCpu<T>(hidden, more, weight.data(), eps, x, normal);
    } else {
      if (more != nullptr) AddRowCpu<T>(hidden, more, x);
      std::copy_n(x, hidden, normal);
    }
    if (to != nullptr) to->SetRow(r, normal);
  });
}

template <typename T>
void CpuForward<T>::NormOutput(const std::vector<float>& weight, int64_t rows, int64_t stride) {
  if (weight.empty()) return;
  const int64_t hidden = config_.hidden_size;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  ParallelFor(rows, WorthThreads(rows * hidden * 8), [&](int64_t r) {
    float* row = narrow_.data() + r * stride;
    AddNormRowCpu<T>(hidden, nullptr, weight.data(), eps, row, row);
  });
}

template <typename T>
void CpuForward<T>::Attention(const CpuLayer& layer, const Rotations* rotations, const PagedShape& shape,
                              const KvPages<T>& kv, std::span<const TokenRow> rows,
                              std::span<const int64_t> kept) {
  const int64_t count = static_cast<int64_t>(rows.size()), half = config_.head_dim / 2;
  const int64_t q_width = config_.q_width(), kv_width = config_.kv_width();
  const std::vector<float>&q_norm = layer.norm(kQueryNorm), &k_norm = layer.norm(kKeyNorm);
  const bool by_head = config_.qk_norm == QkNorm::kHead, all_heads = config_.qk_norm == QkNorm::kAllHeads;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const RotaryRow rotary{shape.heads,
                         shape.kv_heads,
                         shape.head_dim,
                         by_head ? q_norm.data() : nullptr,
                         by_head ? k_norm.data() : nullptr,
                         eps};
  int64_t stride = 0;
  Multiply(operand_, layer.linear(kQkv), &wide_, &stride);
  MarkPart(parts_, "qkv product");
  if (attended_.size() < static_cast<size_t>(count * q_width)) attended_.resize(count * q_width);
  ParallelFor(count, WorthThreads(count * stride * 4), [&](int64_t r) {
    float* qkv = wide_.data() + r * stride;
    if (all_heads) {
      AddNormRowCpu<T>(q_width, nullptr, q_norm.data(), eps, qkv, qkv);
      AddNormRowCpu<T>(kv_width, nullptr, k_norm.data(), eps, qkv + q_width, qkv + q_width);
    }
    const int64_t angle = rows[r].place.position * half;
    RotateRowCpu<T>(rotary, rotations != nullptr ? rotations->cos.data() + angle : ones_.data(),
                    rotations != nullptr ? rotations->sin.data() + angle : zeros_.data(), qkv);
    if (kv_fp8_) {
      for (int64_t head = 0; head < 2 * shape.kv_heads; ++head) {
        float* at = qkv + q_width + head * shape.head_dim;
        RoundRowCpu<T>(shape.head_dim, at);
        RoundToScaledE4m3(shape.head_dim, at);
      }
    }
    WriteKvCpu(shape, kv, rows[r].place, qkv + q_width, qkv + q_width + kv_width);
  });
  MarkPart(parts_, "norm, rotation, KV write");
  const auto left = static_cast<int64_t>(kept.size());
  if (left < count) {
    const int64_t hidden = config_.hidden_size;
    for (int64_t i = 0; i < left; ++i) {
      std::copy_n(wide_.data() + kept[i] * stride, q_width, wide_.data() + i * stride);
      std::copy_n(x_.data() + kept[i] * hidden, hidden, x_.data() + i * hidden);
      places_[i] = places_[kept[i]];
    }
  }
  PagedAttentionCpu(shape, kv, places_.data(), left, wide_.data(), stride, attended_.data());
  operand_.Resize(left, q_width);
  ParallelFor(left, WorthThreads(left * q_width * 8), [&](int64_t r) {
    float* row = attended_.data() + r * q_width;
    if (operand_.format() == GemmFormat::kFp8)
      RoundRowCpu<T>(q_width, row);  // others round no further than T
    operand_.SetRow(r, row);
  });
  MarkPart(parts_, "attention");
}

template <typename T>
void CpuForward<T>::DenseMlp(const CpuLayer& layer, int64_t rows) {
  const CpuLinear& gate_up = layer.linear(kGateUp);
  if (gate_up.weight.fuses_swiglu()) {
    return PackedGemmSwiglu(operand_, gate_up.weight, gate_up.bias_or_null(), &inner_);
  }
  int64_t stride = 0;
  Multiply(operand_, gate_up, &wide_, &stride);
  const int64_t width = config_.intermediate_size;
  inner_.Resize(rows, width);
  ParallelFor(rows, WorthThreads(rows * stride * 4), [&](int64_t r) {
    float* row = wide_.data() + r * stride;
    SwigluRowCpu<T>(width, row, row);
    inner_.SetRow(r, row);
  });
}

template <typename T>
float* CpuForward<T>::Run(const CpuWeights& weights, const Rotations& rotations, const CpuKvCache<T>& cache,
                          std::span<const TokenRow> rows, std::span<const int64_t> wanted, uint8_t* routing) {
  const int64_t hidden = config_.hidden_size;
  auto count = static_cast<int64_t>(rows.size());
  while (all_.size() < rows.size()) all_.push_back(static_cast<int64_t>(all_.size()));
  places_.clear();
  for (const TokenRow& row : rows) places_.push_back(row.place);
  if (x_.size() < static_cast<size_t>(count * hidden)) {
    x_.resize(count * hidden);
    normal_.resize(count * hidden);
  }
  ParallelFor(count, WorthThreads(count * hidden * 8),
              [&](int64_t r) { weights.Embed(rows[r].token, x_.data() + r * hidden); });
  const float* added = nullptr;
  int64_t stride = 0;
  const int64_t routing_width = std::ranges::count(config_.sparse, true) * config_.moe.experts_per_token;
  for (size_t i = 0; i < weights.layers().size(); ++i) {
    if (!InParallel()) {
      CheckStop();
      threads_.Adapt();
    }
    const CpuLayer& layer = weights.layers()[i];
    AddNorm(layer.norm(kAttentionNorm), added, stride, count, &operand_);
    MarkPart(parts_, i == 0 ? "embedding, norm" : "residual, norm");
    // Of rows that nobody wants, the last layer's keys and values are needed, and nothing more.
    const bool last = i + 1 == weights.layers().size();
    const std::span<const int64_t> kept = last ? wanted : std::span(all_).first(rows.size());
    Attention(layer, config_.rotary[i] ? &rotations : nullptr, cache.shape(), cache.layer(i), rows, kept);
    count = static_cast<int64_t>(kept.size());
    Multiply(operand_, layer.linear(kOut), &narrow_, &stride);
    MarkPart(parts_, "out product");
    NormOutput(layer.norm(kAttentionOutNorm), count, stride);
    if (!layer.sparse()) {
      AddNorm(layer.norm(kMlpNorm), narrow_.data(), stride, count, &operand_);
      MarkPart(parts_, "residual, norm");
      DenseMlp(layer, count);
      MarkPart(parts_, "gate-up product, SwiGLU");
      Multiply(inner_, layer.linear(kDown), &narrow_, &stride);
      MarkPart(parts_, "down product");
    } else {
      AddNorm(layer.norm(kMlpNorm), narrow_.data(), stride, count, &router_operand_);
      MarkPart(parts_, "residual, norm");
      Multiply(router_operand_, layer.linear(kRouter), &wide_, &stride);
      if (narrow_.size() < static_cast<size_t>(count * hidden)) narrow_.resize(count * hidden);
      RunExperts<T>(config_.moe, layer, count, hidden, normal_.data(), wide_.data(), stride,
                    {routing, routing_width, kept.data()}, narrow_.data());
      if (routing != nullptr) routing += config_.moe.experts_per_token;
      stride = hidden;
      MarkPart(parts_, "experts");
    }
    NormOutput(layer.norm(kMlpOutNorm), count, stride);
    added = narrow_.data();
  }
  AddNorm(weights.norm(), added, stride, count, nullptr);
  MarkPart(parts_, "residual, norm");
  return normal_.data();
}

template class CpuForward<float>;
template class CpuForward<BFloat16>;

}  // namespace augur
