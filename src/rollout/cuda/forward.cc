#include "rollout/cuda/forward.h"

#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "kernels/decode/decode_attention.h"
#include "kernels/layer/quantise_rows.h"
#include "kernels/layer/rms_norm.h"
#include "kernels/layer/rotary.h"
#include "kernels/layer/swiglu.h"
#include "model/moe.h"
#include "ops/device.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

constexpr int64_t kMostAttentionRows = 32768;  // of one launch

const int32_t* IntData(const at::Tensor& tensor) {
  return tensor.defined() ? ConstData<int32_t>(tensor) : nullptr;
}

// FP8 products want rows of whole 16 bytes; others are computed in float32 from the same rounded values.
bool TensorCoresTake(const at::Tensor& weight) {
  return weight.size(0) % 16 == 0 && weight.size(1) % 16 == 0 && HasFp8Units(weight);
}

}  // namespace

CudaRows::CudaRows(const CudaWeights& weights, int64_t rows) {
  const ModelConfig& c = weights.model().config;
  const auto options = weights.model().embedding.options().dtype(weights.dtype());
  const auto make = [&](int64_t width) { return at::empty({rows, width}, options); };
  hidden = make(c.hidden_size);
  delta = make(c.hidden_size);
  normal = make(c.hidden_size);
  qkv = make(c.q_width() + 2 * c.kv_width());
  rotated = make(c.q_width() + c.kv_width());
  mixed = make(c.q_width());
  gate_up = make(2 * c.intermediate_size);
  inner = make(c.intermediate_size);
  if (!weights.fp8()) return;
  const auto bytes = options.dtype(at::kFloat8_e4m3fn);
  quantised = at::empty({rows, std::max(c.hidden_size, c.q_width())}, bytes);
  inner_quantised = at::empty({rows, c.intermediate_size}, bytes);
  quantised_scale = at::empty({rows, 1}, options.dtype(at::kFloat));
  inner_scale = at::empty({rows, 1}, options.dtype(at::kFloat));
}

// One pass: the buffers cut to its rows, and the steps of a layer.
struct CudaForward::Pass {
  Pass(const CudaForward& forward, const CudaBatch& b, const CudaPages& p, CudaRows& memory)
      : weights(forward.weights_),
        config(forward.weights_.model().config),
        rotation(forward.rotation_),
        batch(b),
        pages(p),
        rows(b.tokens.size(0)),
        stream(CurrentStream(b.tokens)) {
    const auto cut = [&](const at::Tensor& buffer) { return buffer.narrow(0, 0, rows); };
    hidden = cut(memory.hidden);
    delta = cut(memory.delta);
    normal = cut(memory.normal);
    qkv = cut(memory.qkv);
    rotated = cut(memory.rotated);
    mixed = cut(memory.mixed);
    gate_up = cut(memory.gate_up);
    inner = cut(memory.inner);
    if (!weights.fp8()) return;
    hidden8 = memory.quantised.flatten().narrow(0, 0, rows * config.hidden_size).view({rows, -1});
    mixed8 = memory.quantised.flatten().narrow(0, 0, rows * config.q_width()).view({rows, -1});
    inner8 = cut(memory.inner_quantised);
    scale8 = cut(memory.quantised_scale);
    inner_scale8 = cut(memory.inner_scale);
  }

  template <typename T>
  void Layers() {
    const Model& model = weights.model();
    Norm<T>(model.layers[0].input_norm, /*first=*/true, /*last=*/false);
    for (size_t i = 0; i < model.layers.size(); ++i) {
      const LayerWeights& layer = model.layers[i];
      const CudaLayer& linear = weights.layers()[i];
      Product(normal, hidden8, scale8, linear.qkv, qkv);
      Rotate<T>(layer, i);
      Attend<T>(i);
      if (weights.fp8()) {
        QuantiseRowsCuda(rows, config.q_width(), ConstData<T>(mixed), Data<uint8_t>(mixed8),
                         Data<float>(scale8), stream);
      }
      Product(mixed, mixed8, scale8, linear.out, delta);
      Norm<T>(layer.post_attention_norm, false, layer.router.defined());
      if (layer.router.defined()) {
        delta.copy_(MoeForward(config.moe, layer, normal, {}, {}).hidden);
      } else {
        Product(normal, hidden8, scale8, linear.gate_up, gate_up);
        SwigluForwardCuda(rows, config.intermediate_size, ConstData<T>(gate_up), Data<T>(inner),
                          weights.fp8() ? Data<uint8_t>(inner8) : nullptr,
                          weights.fp8() ? Data<float>(inner_scale8) : nullptr, stream);
        Product(inner, inner8, inner_scale8, linear.down, delta);
      }
      const bool last = i + 1 == model.layers.size();
      Norm<T>(last ? model.norm : model.layers[i + 1].input_norm, false, last);
    }
  }

  // hidden += delta, or the embeddings at first; normal = its norm, in FP8 too where a product follows.
  template <typename T>
  void Norm(const at::Tensor& weight, bool first, bool last) {
    RmsNormRows<T> norm{.rows = rows, .width = config.hidden_size};
    norm.x = ConstData<T>(first ? weights.model().embedding : hidden);
    if (first) norm.gather = IntData(batch.tokens);
    if (!first) norm.delta = ConstData<T>(delta);
    norm.weight = ConstData<T>(weight);
    norm.eps = static_cast<float>(config.rms_norm_eps);
    norm.sum = Data<T>(hidden);
    norm.y = Data<T>(normal);
    if (weights.fp8() && !last) {
      norm.quantised = Data<uint8_t>(hidden8);
      norm.scale = Data<float>(scale8);
    }
    RmsNormForwardCuda(norm, stream);
  }

  static void Product(const at::Tensor& x, const at::Tensor& x8, const at::Tensor& x_scale,
                      const CudaLinear& linear, at::Tensor& out) {
    const at::Tensor weight = linear.weight.t();
    if (!linear.scale.defined()) {
      if (linear.bias.defined()) {
        at::addmm_out(out, linear.bias, x, weight);
      } else {
        at::mm_out(out, x, weight);
      }
    } else if (TensorCoresTake(linear.weight)) {
      const std::optional<at::Tensor> bias =
          linear.bias.defined() ? std::optional(linear.bias) : std::nullopt;
      // Fast sums keep 14 bits, ten more than the factors have.
      at::_scaled_mm_out(out, x8, weight, x_scale, linear.scale, bias, std::nullopt, out.scalar_type(),
                         /*use_fast_accum=*/true);
    } else {
      at::Tensor exact = at::mm(x8.to(at::kFloat), weight.to(at::kFloat)).mul_(x_scale).mul_(linear.scale);
      if (linear.bias.defined()) exact.add_(linear.bias);
      out.copy_(exact);
    }
  }

  template <typename T>
  void Rotate(const LayerWeights& layer, size_t i) {
    const RotaryInput<T> in{rows,
                            static_cast<int>(config.heads),
                            static_cast<int>(config.kv_heads),
                            static_cast<int>(config.head_dim),
                            ConstData<T>(qkv),
                            layer.q_norm.defined() ? ConstData<T>(layer.q_norm) : nullptr,
                            layer.k_norm.defined() ? ConstData<T>(layer.k_norm) : nullptr,
                            static_cast<float>(config.rms_norm_eps),
                            IntData(batch.positions),
                            ConstData<float>(rotation.cos),
                            ConstData<float>(rotation.sin)};
    const PagedKv<T> to{Keys<T>(i, 0),
                        Keys<T>(i, 1),
                        static_cast<int>(kCudaPageTokens),
                        IntData(batch.page_table),
                        batch.page_table.stride(0),
                        IntData(batch.owners)};
    RotaryForwardCuda(in, Data<T>(rotated), &to, stream);
  }

  template <typename T>
  void Attend(size_t i) {
    // torch's flash kernels take half precision and whole vectors alone.
    const bool flash = batch.cu_seqlens.defined() && rotated.scalar_type() == at::kBFloat16 &&
                       config.head_dim % 8 == 0 && config.head_dim <= 256;
    if (flash) {
      FlashAttention();
      return;
    }
    for (int64_t begin = 0; begin < rows; begin += kMostAttentionRows) {
      DecodeAttention<T> in{.sequences = std::min(kMostAttentionRows, rows - begin),
                            .heads = static_cast<int>(config.heads),
                            .kv_heads = static_cast<int>(config.kv_heads),
                            .head_dim = static_cast<int>(config.head_dim)};
      in.q = ConstData<T>(rotated) + begin * rotated.size(1);
      in.q_stride = rotated.size(1);
      in.keys = Keys<T>(i, 0);
      in.values = Keys<T>(i, 1);
      in.page_size = static_cast<int>(kCudaPageTokens);
      in.page_table = IntData(batch.page_table);
      in.table_stride = batch.page_table.stride(0);
      in.positions = IntData(batch.positions) + begin;
      if (batch.owners.defined()) in.owners = IntData(batch.owners) + begin;
      in.out = Data<T>(mixed) + begin * mixed.size(1);
      in.splits = batch.splits;
      if (batch.splits > 1) in.workspace = batch.attention_workspace.data_ptr();
      DecodeAttentionCuda(in, stream);
    }
  }

  void FlashAttention() {
    const at::Tensor turned = rotated.view({rows, -1, config.head_dim});
    const at::Tensor all = qkv.view({rows, -1, config.head_dim});
    const auto result = at::_flash_attention_forward(
        turned.narrow(1, 0, config.heads), turned.narrow(1, config.heads, config.kv_heads),
        all.narrow(1, config.heads + config.kv_heads, config.kv_heads), batch.cu_seqlens, batch.cu_seqlens,
        batch.longest, batch.longest, /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false);
    mixed = std::get<0>(result).view({rows, -1});
  }

  template <typename T>
  T* Keys(size_t layer, int64_t part) const {
    const at::Tensor& memory = pages.memory;
    return Data<T>(memory) + static_cast<int64_t>(layer) * memory.stride(0) + part * memory.stride(1);
  }

  const CudaWeights& weights;
  const ModelConfig& config;
  const RotationTable& rotation;
  const CudaBatch& batch;
  const CudaPages& pages;
  int64_t rows;
  void* stream;
  at::Tensor hidden, delta, normal, qkv, rotated, mixed, gate_up, inner;
  at::Tensor hidden8, mixed8, inner8, scale8, inner_scale8;
};

CudaForward::CudaForward(const CudaWeights& weights)
    : weights_(weights),
      rotation_(
          MakeRotationTable(weights.model().inverse_frequencies, weights.model().config.max_positions)) {
  waits_ = std::ranges::count(weights.model().config.sparse, true) > 0;
}

at::Tensor CudaForward::Run(const CudaBatch& batch, const CudaPages& pages, CudaRows& memory) const {
  Pass pass(*this, batch, pages, memory);
  WithElementType(pass.hidden, [&]<typename T>(T) { pass.Layers<T>(); });
  return pass.normal;
}

void CudaForward::Head(const at::Tensor& hidden, at::Tensor& out) const {
  const at::Tensor head = weights_.model().head.t();
  if (hidden.scalar_type() == at::kFloat) {
    at::mm_out(out, hidden, head);
  } else {
    at::mm_out(out, hidden, head, at::kFloat);
  }
}

}  // namespace augur
