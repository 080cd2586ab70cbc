#include "rollout/backend.h"

#include <algorithm>

#include "base/memory.h"
#include "kernels/simd/parallel_work.h"
#include "kernels/thread_team.h"
#include "model/rope.h"
#include "rollout/cpu/forward.h"
#include "rollout/cpu/sampler.h"
#include "rollout/cpu/step_threads.h"

namespace augur {
namespace {

// Rows taken through the layers together.
constexpr int64_t kChunkRows = 480;
// Weights up to this size stay in cache: then each thread takes its share of the sequences through all
// layers by itself, with a single barrier at the end. Larger ones are read once for all sequences, the
// threads sharing out the columns of every product.
constexpr int64_t kCachedWeightBytes = 8 << 20;

template <typename T>
class CpuBackend : public Backend {
 public:
  CpuBackend(const Model& model, const EngineOptions& options)
      : config_(model.config),
        precision_(options.precision),
        kv_precision_(options.kv_precision),
        parts_(options.parts),
        store_(options.store),
        routing_width_(options.record_routing
                           ? std::ranges::count(config_.sparse, true) * config_.moe.experts_per_token
                           : 0),
        weights_(model.config, options.precision),
        cache_(model.config),
        sampler_(weights_, options.precision) {
    UpdateWeights(model);
  }

  int64_t page_tokens() const override { return kPageTokens; }
  int64_t page_bytes() const override { return cache_.page_bytes(); }
  int64_t FreeBytes() const override { return AvailableMemoryPerProcess(); }
  int threads() const override { return threads_.threads(); }
  void ReservePages(int64_t pages) override { cache_.Reserve(pages); }
  void CopyPages(std::span<const std::pair<int32_t, int32_t>> copies) override {
    for (const auto& [from, to] : copies) cache_.CopyPage(from, to);
  }

  void Prefill(std::span<const PrefillSequence> sequences, std::span<const SampleDraw> draws,
               const SampleSettings& settings, const SampleResults& out) override {
    const StepThreads::Scope scope(&threads_);
    int64_t tokens = 0, longest = 0;
    for (const PrefillSequence& sequence : sequences) {
      tokens += NewTokens(sequence);
      longest = std::max(longest, static_cast<int64_t>(sequence.tokens.size()));
    }
    GrowRotations(longest);
    MakeRoutingRoom(tokens);
    last_.resize(sequences.size() * config_.hidden_size);
    Share(static_cast<int64_t>(sequences.size()), tokens,
          [&](CpuForward<T>* forward, int64_t begin, int64_t end) {
            PrefillPart(forward, sequences, begin, end);
          });
    sampler_.Sample(last_.data(), draws, settings, out);
  }

  void Decode(std::span<const DecodeSequence> sequences, std::span<const SampleDraw> draws,
              const SampleSettings& settings, const SampleResults& out) override {
    const StepThreads::Scope scope(&threads_);
    const auto count = static_cast<int64_t>(sequences.size());
    rows_.clear();
    all_.clear();
    int64_t longest = 0;
    for (const DecodeSequence& sequence : sequences) {
      all_.push_back(static_cast<int64_t>(all_.size()));
      rows_.push_back({sequence.token, {sequence.pages.data(), sequence.position}});
      longest = std::max<int64_t>(longest, sequence.position + 1);
    }
    GrowRotations(longest);
    MakeRoutingRoom(count);
    last_.resize(count * config_.hidden_size);
    if (parts_ != nullptr) parts_->BeginStep(static_cast<int64_t>(sequences.size()));
    Share(count, count, [&](CpuForward<T>* forward, int64_t begin, int64_t end) {
      const float* states =
          forward->Run(weights_, rotations_, cache_, std::span(rows_).subspan(begin, end - begin),
                       std::span(all_).first(end - begin), RoutingAt(begin));
      std::copy_n(states, (end - begin) * config_.hidden_size, last_.data() + begin * config_.hidden_size);
    });
    sampler_.Sample(last_.data(), draws, settings, out);
    MarkPart(parts_, "head product, sampling");
    if (parts_ != nullptr) parts_->EndStep();
  }

  std::span<const uint8_t> routing() const override { return routing_; }

  void UpdateWeights(const Model& model) override {
    weights_.Load(model, store_);
    frequencies_ = model.inverse_frequencies.cpu();
    rotations_ = {};
  }
  void ReleaseWeights() override { weights_.Release(); }
  int64_t weight_bytes() const override { return weights_.released() ? 0 : weights_.bytes(); }

 private:
  // Calls work(forward, begin, end) for parts of `count` sequences with `tokens` tokens together, in
  // parallel where the weights stay in cache.
  template <typename Work>
  void Share(int64_t count, int64_t tokens, const Work& work) {
    threads_.Adapt();
    const bool cached = weights_.bytes() <= kCachedWeightBytes && WorthThreads(tokens * weights_.bytes() / 8);
    const int64_t parts = cached ? std::clamp<int64_t>(count, 1, TeamThreads()) : 1;
    while (static_cast<int64_t>(forwards_.size()) < parts) {
      // Where threads work side by side, the first one's parts stand for all.
      forwards_.push_back(std::make_unique<CpuForward<T>>(config_, precision_, kv_precision_, &threads_,
                                                          forwards_.empty() ? parts_ : nullptr));
    }
    if (parts == 1) return work(forwards_[0].get(), 0, count);
    ParallelFor(parts, true, [&](int64_t part) {
      work(forwards_[part].get(), count * part / parts, count * (part + 1) / parts);
    });
  }

  static int64_t NewTokens(const PrefillSequence& sequence) {
    return static_cast<int64_t>(sequence.tokens.size()) - sequence.known_pages * kPageTokens;
  }

  void PrefillPart(CpuForward<T>* forward, std::span<const PrefillSequence> sequences, int64_t begin,
                   int64_t end) {
    const int64_t hidden = config_.hidden_size;
    std::vector<TokenRow> rows;
    std::vector<int64_t> ends;  // rows of the chunk that end a sequence
    int64_t ended = begin;      // sequences before the first of them
    int64_t done = 0;           // tokens before the chunk
    for (int64_t s = 0; s < begin; ++s) done += NewTokens(sequences[s]);
    auto flush = [&] {
      if (rows.empty()) return;
      const float* states = forward->Run(weights_, rotations_, cache_, rows, ends, RoutingAt(done));
      std::copy_n(states, ends.size() * hidden, last_.data() + ended * hidden);
      ended += static_cast<int64_t>(ends.size());
      done += static_cast<int64_t>(rows.size());
      rows.clear();
      ends.clear();
    };
    for (int64_t s = begin; s < end; ++s) {
      const PrefillSequence& sequence = sequences[s];
      for (size_t i = sequence.known_pages * kPageTokens; i < sequence.tokens.size(); ++i) {
        rows.push_back({sequence.tokens[i], {sequence.pages.data(), static_cast<int32_t>(i)}});
        if (i + 1 == sequence.tokens.size()) ends.push_back(static_cast<int64_t>(rows.size()) - 1);
        if (static_cast<int64_t>(rows.size()) == kChunkRows) flush();
      }
    }
    flush();
  }

  // Of every token the first experts, until others are noted.
  void MakeRoutingRoom(int64_t tokens) {
    routing_.resize(tokens * routing_width_);
    for (size_t i = 0; i < routing_.size(); ++i) {
      routing_[i] = static_cast<uint8_t>(i % config_.moe.experts_per_token);
    }
  }
  uint8_t* RoutingAt(int64_t token) {
    return routing_width_ == 0 ? nullptr : routing_.data() + token * routing_width_;
  }

  void GrowRotations(int64_t length) {
    const int64_t half = config_.head_dim / 2;
    if (static_cast<int64_t>(rotations_.cos.size()) >= length * half) return;
    const RotationTable table =
        MakeRotationTable(frequencies_, std::min(config_.max_positions, std::max<int64_t>(2 * length, 256)));
    const at::Tensor cos = table.cos.contiguous(), sin = table.sin.contiguous();
    rotations_.cos.assign(cos.const_data_ptr<float>(), cos.const_data_ptr<float>() + cos.numel());
    rotations_.sin.assign(sin.const_data_ptr<float>(), sin.const_data_ptr<float>() + sin.numel());
  }

  const ModelConfig config_;
  const RolloutPrecision precision_;
  const KvPrecision kv_precision_;
  PartTimer* const parts_;
  LayerStore* const store_;
  const int64_t routing_width_;  // bytes for each token; 0: not recorded
  std::vector<uint8_t> routing_;
  CpuWeights weights_;
  CpuKvCache<T> cache_;
  CpuSampler sampler_;
  StepThreads threads_;
  at::Tensor frequencies_;
  Rotations rotations_;
  std::vector<std::unique_ptr<CpuForward<T>>> forwards_;
  std::vector<TokenRow> rows_;
  std::vector<int64_t> all_;  // their numbers
  std::vector<float> last_;   // hidden states to draw from, [sequences, hidden]
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(const Model& model, const EngineOptions& options) {
  if (options.precision == RolloutPrecision::kFp32) {
    return std::make_unique<CpuBackend<float>>(model, options);
  }
  return std::make_unique<CpuBackend<BFloat16>>(model, options);
}

}  // namespace augur
