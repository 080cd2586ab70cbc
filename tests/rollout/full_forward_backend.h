// The plain backend: every step runs the whole sequences through the training forward. The reference that the
// others are compared with; its pages hold token ids.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "model/forward.h"
#include "rollout/backend.h"

namespace augur {

class FullForwardBackend : public Backend {
 public:
  static constexpr int64_t kTokens = 16;  // of a page

  FullForwardBackend(const Model& model, const EngineOptions& options)
      : model_(AllocateModel(model.config,
                             options.precision == RolloutPrecision::kFp32 ? at::kFloat : at::kBFloat16,
                             model.embedding.device())) {
    UpdateWeights(model);
  }

  int64_t page_tokens() const override { return kTokens; }
  int64_t page_bytes() const override { return kTokens * static_cast<int64_t>(sizeof(int32_t)); }
  int64_t FreeBytes() const override { return int64_t{1} << 24; }

  void ReservePages(int64_t pages) override { pages_.resize(pages * kTokens); }
  void CopyPages(std::span<const std::pair<int32_t, int32_t>> copies) override {
    for (const auto& [from, to] : copies) {
      std::copy_n(pages_.begin() + from * kTokens, kTokens, pages_.begin() + to * kTokens);
    }
  }

  void Prefill(std::span<const PrefillSequence> sequences, std::span<const SampleDraw> draws,
               const SampleSettings& settings, const SampleResults& out) override {
    std::vector<std::vector<int32_t>> whole;
    for (const PrefillSequence& sequence : sequences) {
      for (size_t i = 0; i < sequence.tokens.size(); ++i) *At(sequence.pages, i) = sequence.tokens[i];
      whole.emplace_back(sequence.tokens.begin(), sequence.tokens.end());
    }
    Run(whole, draws, settings, out);
  }

  void Decode(std::span<const DecodeSequence> sequences, std::span<const SampleDraw> draws,
              const SampleSettings& settings, const SampleResults& out) override {
    std::vector<std::vector<int32_t>> whole;
    for (const DecodeSequence& sequence : sequences) {
      *At(sequence.pages, sequence.position) = sequence.token;
      std::vector<int32_t>& tokens = whole.emplace_back();
      for (int32_t i = 0; i <= sequence.position; ++i) tokens.push_back(*At(sequence.pages, i));
    }
    Run(whole, draws, settings, out);
  }

  void UpdateWeights(const Model& model) override {
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> from = Parameters(model), to = Parameters(model_);
    for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
    model_.inverse_frequencies = model.inverse_frequencies;
    head_ = model_.head.to(at::kFloat);
  }
  void ReleaseWeights() override {}
  int64_t weight_bytes() const override { return 0; }

 private:
  int32_t* At(std::span<const int32_t> pages, int64_t position) {
    return &pages_[pages[position / kTokens] * kTokens + position % kTokens];
  }

  void Run(const std::vector<std::vector<int32_t>>& sequences, std::span<const SampleDraw> draws,
           const SampleSettings& settings, const SampleResults& out) {
    const at::NoGradGuard no_grad;
    const PackedBatch batch = PackSequences(sequences, model_.embedding.device());
    const at::Tensor last = (batch.cu_seqlens.slice(0, 1) - 1).to(at::kLong);
    const at::Tensor hidden = Forward(model_, batch).hidden.index_select(0, last).to(at::kFloat);
    const at::Tensor logits = at::linear(hidden, head_).cpu();
    SampleSupportCpu(logits.const_data_ptr<float>(), draws.data(), static_cast<int64_t>(draws.size()),
                     settings, out);
  }

  Model model_;
  at::Tensor head_;  // float32
  std::vector<int32_t> pages_;
};

inline std::unique_ptr<Backend> MakeFullForwardBackend(const Model& model, const EngineOptions& options) {
  return std::make_unique<FullForwardBackend>(model, options);
}

}  // namespace augur
