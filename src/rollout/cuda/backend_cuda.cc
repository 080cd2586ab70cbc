#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "base/error.h"
#include "ops/device.h"
#include "ops/typed_data.h"
#include "rollout/cuda/decoder_cuda.h"
#include "rollout/sample_buffer.h"

namespace augur {
namespace {

class CudaBackend : public Backend {
 public:
  CudaBackend(const Model& model, const EngineOptions& options)
      : device_(model.embedding.device()),
        kv_fp8_(options.kv_precision == KvPrecision::kFp8),
        weights_(model, options.precision, options.own_weights, options.store),
        forward_(weights_, options.parts),
        routing_width_(options.record_routing ? std::ranges::count(model.config.sparse, true) *
                                                    model.config.moe.experts_per_token
                                              : 0),
        decoder_(weights_, forward_, pages_, routing_width_) {}

  int64_t page_tokens() const override { return kCudaPageTokens; }
  int64_t page_bytes() const override {
    const ModelConfig& config = weights_.model().config;
    const int64_t heads = config.layers * 2 * config.kv_heads * kCudaPageTokens;
    if (kv_fp8_) return heads * (config.head_dim + static_cast<int64_t>(sizeof(float)));
    return heads * config.head_dim * static_cast<int64_t>(c10::elementSize(weights_.dtype()));
  }

  int64_t FreeBytes() const override {
    const c10::cuda::CUDAGuard guard(device_);
    size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index());
    return static_cast<int64_t>(free) + stats.reserved_bytes[0].current - stats.allocated_bytes[0].current;
  }

  void ReservePages(int64_t pages) override {
    const c10::cuda::CUDAGuard guard(device_);
    if (pages_.memory.defined() && pages_.memory.size(2) == pages) return;
    decoder_.DropAhead();
    pages_ = {};
    if (pages == 0) return;
    const ModelConfig& config = weights_.model().config;
    const auto options = weights_.model().embedding.options();
    CudaPages made;
    made.memory = at::empty({config.layers, 2, pages, config.kv_heads, kCudaPageTokens, config.head_dim},
                            options.dtype(kv_fp8_ ? at::kByte : weights_.dtype()));
    if (kv_fp8_) {
      made.scales =
          at::empty({config.layers, 2, pages, config.kv_heads, kCudaPageTokens}, options.dtype(at::kFloat));
    }
    pages_ = made;
    // Graphs hold the addresses and, through the strides, the number of pages.
    const void* scales = kv_fp8_ ? pages_.scales.data_ptr() : nullptr;
    if (pages_.memory.data_ptr() != last_address_ || scales != last_scales_ || pages != last_pages_) {
      decoder_.DropGraphs();
    }
    last_address_ = pages_.memory.data_ptr();
    last_scales_ = scales;
    last_pages_ = pages;
  }

  void CopyPages(std::span<const std::pair<int32_t, int32_t>> copies) override {
    const c10::cuda::CUDAGuard guard(device_);
    for (const at::Tensor& memory : {pages_.memory, pages_.scales}) {
      if (memory.defined()) CopyPagesOf(memory, copies);
    }
  }

  void Prefill(std::span<const PrefillSequence> sequences, std::span<const SampleDraw> draws,
               const SampleSettings& settings, const SampleResults& out) override;

  void Decode(std::span<const DecodeSequence> sequences, std::span<const SampleDraw> draws,
              const SampleSettings& settings, const SampleResults& out) override {
    const at::NoGradGuard no_grad;
    const c10::cuda::CUDAGuard guard(device_);
    routing_.resize(sequences.size() * routing_width_);
    decoder_.Decode(sequences, draws, settings, out, routing_.data());
  }

  std::span<const uint8_t> routing() const override { return routing_; }

  void UpdateWeights(const Model& model) override {
    const c10::cuda::CUDAGuard guard(device_);
    decoder_.DropAhead();
    if (weights_.Update(model)) decoder_.DropGraphs();
  }
  // Graphs stay: they are dropped where new weights do not come to the same addresses.
  void ReleaseWeights() override {
    decoder_.DropAhead();
    weights_.Release();
  }
  int64_t weight_bytes() const override { return weights_.bytes(); }

 private:
  // memory [layers, 2, pages, ...].
  static void CopyPagesOf(const at::Tensor& memory, std::span<const std::pair<int32_t, int32_t>> copies) {
    const auto page = static_cast<size_t>(memory.stride(2) * memory.element_size());
    const size_t pitch = page * static_cast<size_t>(memory.size(2));
    const auto rows = static_cast<size_t>(memory.size(0) * memory.size(1));
    auto* base = static_cast<char*>(memory.data_ptr());
    for (const auto& [from, to] : copies) {
      C10_CUDA_CHECK(cudaMemcpy2DAsync(base + to * page, pitch, base + from * page, pitch, page, rows,
                                       cudaMemcpyDeviceToDevice, c10::cuda::getCurrentCUDAStream()));
    }
  }

  c10::Device device_;
  bool kv_fp8_;
  CudaWeights weights_;
  CudaForward forward_;
  CudaPages pages_;
  const int64_t routing_width_;  // bytes for each token; 0: not recorded
  std::vector<uint8_t> routing_;
  CudaDecoder decoder_;
  const void* last_address_ = nullptr;
  const void* last_scales_ = nullptr;
  int64_t last_pages_ = 0;
};

at::Tensor ToGpu(const std::vector<int32_t>& values, at::Device device) {
  return at::tensor(values, at::kInt).to(device);
}

// The tokens of all sequences, one behind the other.
CudaBatch PackForPrefill(std::span<const PrefillSequence> sequences, at::Device device) {
  std::vector<int32_t> tokens, positions, owners, table, bounds = {0};
  size_t width = 0;
  for (const PrefillSequence& sequence : sequences) width = std::max(width, sequence.pages.size());
  CudaBatch batch;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const PrefillSequence& sequence = sequences[s];
    const auto length = static_cast<int32_t>(sequence.tokens.size());
    for (int32_t i = 0; i < length; ++i) {
      tokens.push_back(sequence.tokens[i]);
      positions.push_back(i);
      owners.push_back(static_cast<int32_t>(s));
    }
    table.insert(table.end(), sequence.pages.begin(), sequence.pages.end());
    table.resize((s + 1) * width, -1);
    bounds.push_back(bounds.back() + length);
    batch.longest = std::max<int64_t>(batch.longest, length);
  }
  std::vector<int32_t> written = table;
  for (size_t s = 0; s < sequences.size(); ++s) {
    std::fill_n(written.begin() + static_cast<int64_t>(s * width), sequences[s].known_pages, -1);
  }
  batch.tokens = ToGpu(tokens, device);
  batch.positions = ToGpu(positions, device);
  batch.owners = ToGpu(owners, device);
  batch.page_table = ToGpu(table, device).view({static_cast<int64_t>(sequences.size()), -1});
  batch.written_table = ToGpu(written, device).view_as(batch.page_table);
  batch.cu_seqlens = ToGpu(bounds, device);
  return batch;
}

void CudaBackend::Prefill(std::span<const PrefillSequence> sequences, std::span<const SampleDraw> draws,
                          const SampleSettings& settings, const SampleResults& out) {
  const at::NoGradGuard no_grad;
  const c10::cuda::CUDAGuard guard(device_);
  decoder_.DropAhead();  // others will join the batch, of this call of Generate or the next
  CudaBatch batch = PackForPrefill(sequences, device_);
  const auto bytes = weights_.model().embedding.options().dtype(at::kByte);
  if (routing_width_ > 0) batch.routing = at::empty({batch.tokens.size(0), routing_width_}, bytes);
  CudaRows memory(weights_, batch.tokens.size(0));
  const at::Tensor hidden = forward_.Run(batch, pages_, memory);
  if (draws.empty()) return;

  const at::Tensor last = batch.cu_seqlens.slice(0, 1).sub(1);
  at::Tensor logits =
      at::empty({last.size(0), weights_.model().config.vocab_size}, hidden.options().dtype(at::kFloat));
  forward_.Head(hidden.index_select(0, last), logits);
  const auto count = static_cast<int64_t>(draws.size());
  const at::Tensor drawn = at::empty({count * static_cast<int64_t>(sizeof(SampleDraw))}, at::kByte);
  std::ranges::copy(draws, static_cast<SampleDraw*>(drawn.data_ptr()));
  const at::Tensor there = drawn.to(device_);
  const SampleBuffer buffer{count, settings.columns()};
  const at::Tensor results = at::empty({buffer.bytes()}, bytes);
  const at::Tensor workspace = at::empty({SampleSupportWorkspaceBytes(count, settings)}, bytes);
  SampleSupportCuda(ElementType::kFloat, logits.data_ptr(), static_cast<const SampleDraw*>(there.data_ptr()),
                    count, settings, buffer.At(results.data_ptr()), workspace.data_ptr(),
                    CurrentStream(hidden));
  const at::Tensor here = results.cpu();
  for (int64_t i = 0; i < count; ++i) buffer.Read(here.data_ptr(), i, out, i);
  if (routing_width_ == 0) return;
  const at::Tensor experts = batch.routing.cpu();
  routing_.assign(ConstData<uint8_t>(experts), ConstData<uint8_t>(experts) + experts.numel());
}

}  // namespace

std::unique_ptr<Backend> MakeCudaBackend(const Model& model, const EngineOptions& options) {
  const at::NoGradGuard no_grad;
  const c10::cuda::CUDAGuard guard(model.embedding.device());
  return std::make_unique<CudaBackend>(model, options);
}

}  // namespace augur
