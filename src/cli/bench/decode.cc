// `augur bench decode`: the parts of one decode step on a GPU, each alone, from graphs.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <memory>

#include "base/error.h"
#include "cli/bench/bench.h"
#include "cli/bench/timing.h"
#include "kernels/decode/decode_attention.h"
#include "kernels/decode/sample_support.h"
#include "kernels/layer/rms_norm.h"
#include "kernels/layer/rotary.h"
#include "kernels/layer/swiglu.h"
#include "model/rope.h"
#include "model/shapes.h"
#include "ops/device.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

struct DecodeBenchFlags {
  std::string shape = "qwen3-4b";
  int64_t batch = 64;
  int64_t length = 512;
  int64_t support = 20;
};

constexpr int kPage = 32;

// The buffers of a step; keys and values of every layer, so that nothing is found in a cache.
class Step {
 public:
  Step(const Model& model, const DecodeBenchFlags& options)
      : model_(model), config_(model.config), batch_(options.batch), length_(options.length) {
    const auto bf16 = model.embedding.options();
    const auto ints = bf16.dtype(at::kInt), floats = bf16.dtype(at::kFloat);
    const int64_t per_sequence = (length_ + kPage - 1) / kPage, pages = batch_ * per_sequence;
    hidden_ = at::randn({batch_, config_.hidden_size}, bf16);
    delta_ = at::randn({batch_, config_.hidden_size}, bf16);
    normal_ = at::randn({batch_, config_.hidden_size}, bf16);
    qkv_ = at::randn({batch_, config_.q_width() + 2 * config_.kv_width()}, bf16);
    rotated_ = at::randn({batch_, config_.q_width() + config_.kv_width()}, bf16);
    mixed_ = at::randn({batch_, config_.q_width()}, bf16);
    gate_up_ = at::randn({batch_, 2 * config_.intermediate_size}, bf16);
    inner_ = at::randn({batch_, config_.intermediate_size}, bf16);
    logits_ = at::randn({batch_, config_.vocab_size}, floats);
    table_ = at::arange(pages, ints).view({batch_, per_sequence});
    positions_ = at::full({batch_}, length_ - 1, ints);
    tokens_ = at::randint(config_.vocab_size, {batch_}, ints);
    rotation_ = MakeRotationTable(model.inverse_frequencies, length_);
    for (int64_t i = 0; i < config_.layers; ++i) {
      keys_.push_back(at::randn({pages, config_.kv_heads, kPage, config_.head_dim}, bf16));
      values_.push_back(at::randn({pages, config_.kv_heads, kPage, config_.head_dim}, bf16));
    }
    splits_ = DecodeAttentionSplits(batch_, static_cast<int>(config_.kv_heads), length_);
    workspace_ = at::zeros({DecodeAttentionWorkspaceBytes(batch_, static_cast<int>(config_.heads),
                                                          static_cast<int>(config_.head_dim), splits_)},
                           bf16.dtype(at::kByte));
    PrepareSampling(options);
  }

  int splits() const { return splits_; }
  const at::Tensor& hidden() const { return hidden_; }
  const at::Tensor& inner() const { return inner_; }
  const at::Tensor& mixed() const { return mixed_; }

  // out = x W^T into a buffer of this width.
  void Product(const at::Tensor& x, const at::Tensor& weight) {
    at::Tensor& out = weight.size(0) == qkv_.size(1)       ? qkv_
                      : weight.size(0) == gate_up_.size(1) ? gate_up_
                                                           : delta_;
    at::mm_out(out, x, weight.t());
  }
  void Head() { at::mm_out(logits_, normal_, model_.head.t(), at::kFloat); }

  void Norm(const at::Tensor& weight, bool gather) {
    RmsNormRows<BFloat16> rows{.rows = batch_, .width = config_.hidden_size};
    rows.x = ConstData<BFloat16>(gather ? model_.embedding : hidden_);
    if (gather) rows.gather = ConstData<int32_t>(tokens_);
    if (!gather) rows.delta = ConstData<BFloat16>(delta_);
    rows.weight = ConstData<BFloat16>(weight);
    rows.eps = 1e-6f;
    rows.sum = Data<BFloat16>(hidden_);
    rows.y = Data<BFloat16>(normal_);
    RmsNormForwardCuda(rows, CurrentStream(hidden_));
  }

  void Rotate(const LayerWeights& layer, int64_t i) {
    const RotaryInput<BFloat16> in{
        batch_,
        static_cast<int>(config_.heads),
        static_cast<int>(config_.kv_heads),
        static_cast<int>(config_.head_dim),
        ConstData<BFloat16>(qkv_),
        layer[kQueryNorm].weight.defined() ? ConstData<BFloat16>(layer[kQueryNorm].weight) : nullptr,
        layer[kKeyNorm].weight.defined() ? ConstData<BFloat16>(layer[kKeyNorm].weight) : nullptr,
        1e-6f,
        ConstData<int32_t>(positions_),
        ConstData<float>(rotation_.cos),
        ConstData<float>(rotation_.sin)};
    const PagedKv<BFloat16> pages{Data<BFloat16>(keys_[i]),
                                  Data<BFloat16>(values_[i]),
                                  kPage,
                                  ConstData<int32_t>(table_),
                                  table_.size(1),
                                  nullptr};
    RotaryForwardCuda(in, Data<BFloat16>(rotated_), &pages, CurrentStream(hidden_));
  }

  void Attend(int64_t i) {
    DecodeAttention<BFloat16> in{.sequences = batch_,
                                 .heads = static_cast<int>(config_.heads),
                                 .kv_heads = static_cast<int>(config_.kv_heads),
                                 .head_dim = static_cast<int>(config_.head_dim)};
    in.q = ConstData<BFloat16>(rotated_);
    in.q_stride = rotated_.size(1);
    in.keys = ConstData<BFloat16>(keys_[i]);
    in.values = ConstData<BFloat16>(values_[i]);
    in.page_size = kPage;
    in.page_table = ConstData<int32_t>(table_);
    in.table_stride = table_.size(1);
    in.positions = ConstData<int32_t>(positions_);
    in.out = Data<BFloat16>(mixed_);
    in.splits = splits_;
    in.workspace = workspace_.data_ptr();
    DecodeAttentionCuda(in, CurrentStream(hidden_));
  }

  void Gate() {
    SwigluForwardCuda(batch_, config_.intermediate_size, ConstData<BFloat16>(gate_up_), {},
                      Data<BFloat16>(inner_), nullptr, nullptr, CurrentStream(hidden_));
  }

  void Sample() {
    SampleSupportCuda(ElementType::kFloat, logits_.data_ptr(), static_cast<SampleDraw*>(draws_.data_ptr()),
                      batch_, settings_, results_, sample_workspace_.data_ptr(), CurrentStream(hidden_));
  }

  double attention_bytes() const {
    return static_cast<double>(batch_) * static_cast<double>(length_) *
           static_cast<double>(config_.kv_width()) * 2 * 2;
  }
  double logit_bytes() const { return static_cast<double>(logits_.numel()) * 4; }

 private:
  void PrepareSampling(const DecodeBenchFlags& options) {
    settings_.vocab_size = settings_.stride = config_.vocab_size;
    settings_.support = static_cast<int32_t>(options.support);
    const auto bytes = hidden_.options().dtype(at::kByte);
    const at::Tensor host = at::empty({batch_ * static_cast<int64_t>(sizeof(SampleDraw))}, at::kByte);
    for (int64_t i = 0; i < batch_; ++i) {
      static_cast<SampleDraw*>(host.data_ptr())[i] = MakeSampleDraw(static_cast<int32_t>(i), 1, i, 0, 0);
    }
    draws_ = host.to(hidden_.device());
    sample_workspace_ = at::empty({SampleSupportWorkspaceBytes(batch_, settings_)}, bytes);
    sampled_ = at::empty({batch_ * (2 + 2 * settings_.columns())}, bytes.dtype(at::kInt));
    finite_ = at::empty({batch_}, bytes);
    auto* at = static_cast<int32_t*>(sampled_.data_ptr());
    results_.tokens = at;
    results_.logprobs = reinterpret_cast<float*>(at + batch_);
    results_.support_ids = at + 2 * batch_;
    results_.support_logprobs = reinterpret_cast<float*>(at + batch_ * (2 + settings_.columns()));
    results_.finite = static_cast<uint8_t*>(finite_.data_ptr());
  }

  const Model& model_;
  const ModelConfig& config_;
  int64_t batch_, length_;
  at::Tensor hidden_, delta_, normal_, qkv_, rotated_, mixed_, gate_up_, inner_, logits_;
  at::Tensor table_, positions_, tokens_, workspace_, draws_, sample_workspace_, sampled_, finite_;
  RotationTable rotation_;
  std::vector<at::Tensor> keys_, values_;
  int splits_ = 1;
  SampleSettings settings_;
  SampleResults results_;
};

struct Part {
  std::string_view name;
  double bytes;  // of device memory that one call cannot do without
  bool each_layer;
  std::function<void(int)> call;
};

void RunDecodeBench(const DecodeBenchFlags& options) {
  if (options.batch < 1 || options.length < 1) {
    throw Error("--batch and --length", "must be at least 1", "see augur bench decode --help");
  }
  if (!BuiltWithCuda()) throw Error("bench decode", "this build has no CUDA kernels", "install nvcc 13");
  const at::NoGradGuard no_grad;
  const Model model = NoiseModel(NamedShape(options.shape, "--shape"), at::kBFloat16, at::kCUDA, 1);
  const std::vector<LayerWeights>& layers = model.layers;
  const auto size = [](const at::Tensor& x) { return static_cast<double>(x.numel()) * 2; };
  Step step(model, options);
  const auto layer = [&](int i) -> const LayerWeights& { return layers[i % layers.size()]; };
  const double rows = size(step.hidden());
  const std::vector<Part> parts = {
      {"embedding, norm", 3 * rows, false, [&](int i) { step.Norm(layer(i)[kAttentionNorm].weight, true); }},
      {"qkv product", size(layers[0][kQkv].weight), true,
       [&](int i) { step.Product(step.hidden(), layer(i)[kQkv].weight); }},
      {"norm, rotation, KV write", rows, true,
       [&](int i) { step.Rotate(layer(i), i % static_cast<int>(layers.size())); }},
      {"attention", step.attention_bytes(), true,
       [&](int i) { step.Attend(i % static_cast<int>(layers.size())); }},
      {"out product", size(layers[0][kOut].weight), true,
       [&](int i) { step.Product(step.mixed(), layer(i)[kOut].weight); }},
      {"residual, norm", 4 * rows, true, [&](int i) { step.Norm(layer(i)[kAttentionNorm].weight, false); }},
      {"gate-up product", size(layers[0][kGateUp].weight), true,
       [&](int i) { step.Product(step.hidden(), layer(i)[kGateUp].weight); }},
      {"SwiGLU", 3 * size(step.inner()), true, [&](int) { step.Gate(); }},
      {"down product", size(layers[0][kDown].weight), true,
       [&](int i) { step.Product(step.inner(), layer(i)[kDown].weight); }},
      {"residual, norm", 4 * rows, true, [&](int i) { step.Norm(layer(i)[kAttentionNorm].weight, false); }},
      {"head product", size(model.head) + step.logit_bytes(), false, [&](int) { step.Head(); }},
      {"sampling", step.logit_bytes(), false, [&](int) { step.Sample(); }},
  };
  fmt::print("{}, batch {}, {} tokens of context, top-{} recorded, {} splits\n", options.shape, options.batch,
             options.length, options.support, step.splits());
  fmt::print("  {:26} {:>10} {:>8} {:>12} {:>8}\n", "", "us a call", "calls", "ms a step", "TB/s");
  double total = 0;
  for (const Part& part : parts) {
    const auto calls = static_cast<int>(layers.size());
    const double seconds = SecondsPerCall(at::kCUDA, calls, part.call);
    const double share = seconds * (part.each_layer ? calls : 1);
    total += share;
    fmt::print("  {:26} {:10.2f} {:8} {:12.3f} {:8.2f}\n", part.name, seconds * 1e6,
               part.each_layer ? calls : 1, share * 1e3, part.bytes / seconds * 1e-12);
  }
  fmt::print("  {:26} {:>10} {:>8} {:12.3f}   {:.0f} tokens/s\n", "sum", "", "", total * 1e3,
             static_cast<double>(options.batch) / total);
}

}  // namespace

void AddBenchDecode(CLI::App& bench) {
  const auto options = std::make_shared<DecodeBenchFlags>();
  CLI::App* command =
      bench.add_subcommand("decode", "The parts of one decode step on a GPU, each timed alone");
  command->add_option("--shape", options->shape, "smollm2-135m, qwen3-4b, qwen3-8b or qwen3-30b-a3b")
      ->capture_default_str();
  command->add_option("--batch", options->batch, "Sequences decoded at once")->capture_default_str();
  command->add_option("--length", options->length, "Tokens of context of each")->capture_default_str();
  command->add_option("--support", options->support, "Most likely tokens recorded")->capture_default_str();
  command->callback([options] { RunDecodeBench(*options); });
}

}  // namespace augur
