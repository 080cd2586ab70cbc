#include "rollout/cuda/forward.h"

#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <type_traits>

#include "kernels/decode/decode_attention.h"
#include "kernels/decode/experts.h"
#include "kernels/decode/few_tokens_product.h"
#include "kernels/decode/gate_up_product.h"
#include "kernels/layer/quantise_rows.h"
#include "kernels/layer/rms_norm.h"
#include "kernels/layer/rotary.h"
#include "kernels/layer/swiglu.h"
#include "model/moe.h"
#include "ops/device.h"
#include "ops/layer/chosen_product.h"
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

// Whether the experts' grouped products take these weights, [experts, out, in]; others are run one by one.
bool HasGroupedExperts(const CudaWeights& weights, const at::Tensor& experts) {
  return weights.dtype() == at::kBFloat16 && experts.size(1) % 8 == 0 && experts.size(2) % 8 == 0 &&
         (weights.fp8() ? HasFp8GroupedProduct(experts) : HasGroupedProducts(experts));
}

// Whether kernels/decode/experts.h takes a layer's experts.
bool HasExpertKernels(const CudaWeights& weights, const LayerWeights& layer) {
  const MoeConfig& moe = weights.model().config.moe;
  return layer.sparse() && moe.experts <= kMostExperts && moe.experts_per_token <= kMostExpertsPerToken &&
         layer[kExpertsGateUp].weight.size(1) % 16 == 0 &&
         HasGroupedExperts(weights, layer[kExpertsGateUp].weight) &&
         HasGroupedExperts(weights, layer[kExpertsDown].weight);
}

CudaExpertRows MakeExpertRows(const CudaWeights& weights, int64_t rows) {
  const Model& model = weights.model();
  const auto layer = std::ranges::find_if(
      model.layers, [&](const LayerWeights& one) { return HasExpertKernels(weights, one); });
  if (layer == model.layers.end() || rows > kMostExpertTokens || !HasExpertKernelsCuda()) return {};
  const MoeConfig& moe = model.config.moe;
  const int64_t choices = rows * moe.experts_per_token, width = (*layer)[kExpertsDown].weight.size(2);
  const auto options = model.embedding.options().dtype(weights.dtype());
  CudaExpertRows made;
  made.router_logits = at::empty({rows, moe.experts}, options);
  made.chosen = at::empty({choices}, options.dtype(at::kInt));
  made.weights = at::empty({choices}, options);
  made.places = at::empty({ExpertPlacesStride(rows) * moe.experts}, options.dtype(at::kByte));
  made.inner = at::empty({choices, width}, options);
  made.out = at::empty({choices, model.config.hidden_size}, options);
  if (weights.fp8()) {
    made.inner_quantised = at::empty({choices, width}, options.dtype(at::kFloat8_e4m3fn));
    made.inner_scale = at::empty({choices}, options.dtype(at::kFloat));
  }
  return made;
}

// What reads a product decides whether it can be left without its scales: kernels of our own can.
enum class Reader { kKernel, kOther };

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
  // In FP8 the other products stand there, too, in float32, until they are read.
  const int64_t product_width = std::max(c.hidden_size, c.q_width() + 2 * c.kv_width());
  gate_up = make(std::max(2 * c.intermediate_size, weights.fp8() ? 2 * product_width : 0));
  inner = make(c.intermediate_size);
  experts = MakeExpertRows(weights, rows);
  if (!weights.fp8()) return;
  const auto bytes = options.dtype(at::kFloat8_e4m3fn);
  quantised = at::empty({rows, std::max(c.hidden_size, c.q_width())}, bytes);
  inner_quantised = at::empty({rows, c.intermediate_size}, bytes);
  quantised_scale = at::empty({rows, 1}, options.dtype(at::kFloat));
  mixed_scale = at::empty({rows, 1}, options.dtype(at::kFloat));
  inner_scale = at::empty({rows, 1}, options.dtype(at::kFloat));
}

// One pass: the buffers cut to its rows, and the steps of a layer.
struct CudaForward::Pass {
  Pass(const CudaForward& forward, const CudaBatch& b, const CudaPages& p, CudaRows& memory)
      : weights(forward.weights_),
        config(forward.weights_.model().config),
        rotation(forward.rotation_),
        no_rotation(forward.no_rotation_),
        parts(forward.parts_),
        batch(b),
        pages(p),
        rows(b.tokens.size(0)),
        experts(memory.experts),
        stream(CurrentStream(b.tokens)) {
    const auto cut = [&](const at::Tensor& buffer) { return buffer.narrow(0, 0, rows); };
    hidden = cut(memory.hidden);
    delta = cut(memory.delta);
    normal = cut(memory.normal);
    qkv = cut(memory.qkv);
    rotated = cut(memory.rotated);
    mixed = cut(memory.mixed);
    const at::Tensor shared = memory.gate_up.flatten();
    gate_up = shared.narrow(0, 0, rows * 2 * config.intermediate_size).view({rows, -1});
    inner = cut(memory.inner);
    if (!weights.fp8()) return;
    const auto product = [&](const at::Tensor& like) {
      return shared.view(at::kFloat).narrow(0, 0, like.numel()).view(like.sizes());
    };
    float_qkv = product(qkv);
    float_delta = product(delta);
    hidden8 = memory.quantised.flatten().narrow(0, 0, rows * config.hidden_size).view({rows, -1});
    mixed8 = memory.quantised.flatten().narrow(0, 0, rows * config.q_width()).view({rows, -1});
    inner8 = cut(memory.inner_quantised);
    scale8 = cut(memory.quantised_scale);
    mixed_scale8 = cut(memory.mixed_scale);
    inner_scale8 = cut(memory.inner_scale);
  }

  template <typename T>
  void Layers() {
    const Model& model = weights.model();
    const bool norms_qkv = config.qk_norm == QkNorm::kAllHeads;
    const Reader qkv_reader = UsesFlash() || norms_qkv ? Reader::kOther : Reader::kKernel;
    const Reader delta_reader = config.norms_behind ? Reader::kOther : Reader::kKernel;
    AddNorm<T>(model.layers[0][kAttentionNorm].weight, /*first=*/true, /*fp8=*/weights.fp8());
    MarkPart(parts, "embedding, norm");
    for (size_t i = 0; i < model.layers.size(); ++i) {
      const LayerWeights& layer = model.layers[i];
      const CudaLayer& linear = weights.layers()[i];
      qkv_product = FloatProduct(operand, hidden8, scale8, linear[kQkv], qkv, float_qkv, qkv_reader);
      MarkPart(parts, "qkv product");
      Rotate<T>(layer, i);
      MarkPart(parts, "norm, rotation, KV write");
      Attend<T>(i);
      MarkPart(parts, "attention");
      if (weights.fp8()) {
        QuantiseRowsCuda(rows, config.q_width(), ConstData<T>(mixed), Data<uint8_t>(mixed8),
                         Data<float>(mixed_scale8), stream);
      }
      delta_product =
          FloatProduct(mixed, mixed8, mixed_scale8, linear[kOut], delta, float_delta, delta_reader);
      MarkPart(parts, "out product");
      NormOutput<T>(layer[kAttentionOutNorm].weight);
      const bool few = experts.chosen.defined() && HasExpertKernels(weights, layer);
      AddNorm<T>(layer[kMlpNorm].weight, false, weights.fp8() && (few || !layer.sparse()));
      MarkPart(parts, "residual, norm");
      if (layer.sparse()) {
        if (few) {
          FewTokensMixture(layer, linear);
        } else {
          TakeMixture(Mixture(layer, linear));
        }
        ++sparse_layer;
        delta_product = {};
      } else {
        GateUp<T>(linear[kGateUp]);
        delta_product =
            FloatProduct(inner, inner8, inner_scale8, linear[kDown], delta, float_delta, delta_reader);
        MarkPart(parts, "down product");
      }
      NormOutput<T>(layer[kMlpOutNorm].weight);
      const bool last = i + 1 == model.layers.size();
      AddNorm<T>(last ? model.norm : model.layers[i + 1][kAttentionNorm].weight, false,
                 weights.fp8() && !last);
      MarkPart(parts, "residual, norm");
    }
  }

  // inner = SwiGLU of operand's product, in FP8 rounded for the next one.
  template <typename T>
  void GateUp(const CudaLinear& linear) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      const GateUpProduct product{rows,
                                  config.hidden_size,
                                  config.intermediate_size,
                                  ConstData<T>(operand),
                                  weights.fp8() ? nullptr : ConstData<T>(linear.weight),
                                  Data<T>(inner)};
      if (!weights.fp8() && !linear.bias.defined() && HasGateUpProductCuda(product)) {
        GateUpProductCuda(product, stream);
        MarkPart(parts, "gate-up product, SwiGLU");
        return;
      }
    }
    const ProductScale scale = Product(operand, hidden8, scale8, linear, gate_up);
    MarkPart(parts, "gate-up product");
    SwigluForwardCuda(rows, config.intermediate_size, ConstData<T>(gate_up), scale,
                      weights.fp8() ? nullptr : Data<T>(inner),
                      weights.fp8() ? Data<uint8_t>(inner8) : nullptr,
                      weights.fp8() ? Data<float>(inner_scale8) : nullptr, stream);
    MarkPart(parts, "SwiGLU");
  }

  MoeOutput Mixture(const LayerWeights& layer, const CudaLayer& linear) const {
    if (!linear.experts_gate_up.values.defined()) {
      return MoeForward(config.moe, layer, operand, {}, {.fp8 = weights.fp8()});
    }
    const auto experts = [&](const at::Tensor& given, const at::Tensor& ends) {
      const at::Tensor gate_up = Fp8GroupedProduct(RoundRowsToFp8(given), linear.experts_gate_up, ends);
      return Fp8GroupedProduct(SwigluToFp8(gate_up), linear.experts_down, ends);
    };
    return RouteThrough(config.moe, layer[kRouter].weight, operand, {}, experts);
  }

  void TakeMixture(const MoeOutput& mixture) {
    delta.copy_(mixture.hidden);
    if (batch.routing.defined()) {
      const int64_t width = config.moe.experts_per_token;
      batch.routing.narrow(1, sparse_layer * width, width).copy_(mixture.experts);
    }
    MarkPart(parts, "experts");
  }

  // delta = the mixture, by the kernels for few tokens.
  void FewTokensMixture(const LayerWeights& layer, const CudaLayer& linear) {
    const at::Tensor &gate_up = layer[kExpertsGateUp].weight, &down = layer[kExpertsDown].weight;
    ExpertRoutes routes{.tokens = rows,
                        .experts = static_cast<int>(config.moe.experts),
                        .per_token = static_cast<int>(config.moe.experts_per_token),
                        .chosen = Data<int32_t>(experts.chosen),
                        .weights = Data<BFloat16>(experts.weights),
                        .places = Data<uint8_t>(experts.places)};
    if (batch.routing.defined()) {
      routes.record = Data<uint8_t>(batch.routing) + sparse_layer * routes.per_token;
      routes.record_stride = batch.routing.stride(0);
    }
    at::Tensor logits = experts.router_logits.narrow(0, 0, rows);
    at::mm_out(logits, operand, layer[kRouter].weight.t());
    RouteTokensCuda(ConstData<BFloat16>(logits), config.moe.norm_topk_prob, routes, stream);
    MarkPart(parts, "routing");
    ExpertProduct up{.in = static_cast<int>(gate_up.size(2)), .out = static_cast<int>(gate_up.size(1))};
    up.by_token = true;
    up.gated = true;
    up.y = Data<BFloat16>(experts.inner);
    ExpertProduct back{.in = static_cast<int>(down.size(2)), .out = static_cast<int>(down.size(1))};
    back.y = Data<BFloat16>(experts.out);
    if (weights.fp8()) {
      up.x = hidden8.data_ptr();
      up.x_scale = ConstData<float>(scale8);
      up.weights = linear.experts_gate_up.values.data_ptr();
      up.weight_scale = ConstData<float>(linear.experts_gate_up.scale);
      back.x = experts.inner_quantised.data_ptr();
      back.x_scale = ConstData<float>(experts.inner_scale);
      back.weights = linear.experts_down.values.data_ptr();
      back.weight_scale = ConstData<float>(linear.experts_down.scale);
    } else {
      up.x = operand.data_ptr();
      up.weights = gate_up.data_ptr();
      back.x = experts.inner.data_ptr();
      back.weights = down.data_ptr();
    }
    ExpertProductCuda(routes, up, stream);
    MarkPart(parts, "experts' gate-up, SwiGLU");
    if (weights.fp8()) {
      QuantiseRowsCuda(rows * routes.per_token, back.in, ConstData<BFloat16>(experts.inner),
                       Data<uint8_t>(experts.inner_quantised), Data<float>(experts.inner_scale), stream);
    }
    ExpertProductCuda(routes, back, stream);
    MarkPart(parts, "experts' down");
    MixExpertsCuda(routes, config.hidden_size, ConstData<BFloat16>(experts.out), Data<BFloat16>(delta),
                   stream);
    MarkPart(parts, "experts' sum");
  }

  // hidden += delta, or the embeddings at first; operand = its norm, or itself without a weight, in FP8 too
  // where a product in it follows.
  template <typename T>
  void AddNorm(const at::Tensor& weight, bool first, bool fp8) {
    const at::Tensor& embedding = weights.model().embedding;
    if (!weight.defined()) {
      if (first) {
        at::index_select_out(hidden, embedding, 0, batch.tokens);
      } else {
        hidden.add_(delta);
      }
      operand = hidden;
      if (fp8) {
        QuantiseRowsCuda(rows, config.hidden_size, ConstData<T>(hidden), Data<uint8_t>(hidden8),
                         Data<float>(scale8), stream);
      }
      return;
    }
    RmsNormRows<T> norm = NormOf<T>(weight, first ? embedding : hidden, normal);
    if (first) norm.gather = IntData(batch.tokens);
    if (!first) {
      norm.delta = ConstData<T>(delta);
      if (delta_product.values != nullptr) norm.delta = nullptr;
      norm.product = delta_product.values;
      norm.product_scale = delta_product.scale;
    }
    norm.sum = Data<T>(hidden);
    if (fp8) {
      norm.quantised = Data<uint8_t>(hidden8);
      norm.scale = Data<float>(scale8);
    }
    RmsNormForwardCuda(norm, stream);
    operand = normal;
  }

  // delta = its norm, where the family has one there.
  template <typename T>
  void NormOutput(const at::Tensor& weight) {
    if (weight.defined()) RmsNormForwardCuda(NormOf<T>(weight, delta, delta), stream);
  }

  // y [rows, width] = the norm of x's rows.
  template <typename T>
  RmsNormRows<T> NormOf(const at::Tensor& weight, const at::Tensor& x, const at::Tensor& y) const {
    RmsNormRows<T> norm{.rows = rows, .width = weight.size(0)};
    norm.x = ConstData<T>(x);
    norm.weight = ConstData<T>(weight);
    norm.eps = static_cast<float>(config.rms_norm_eps);
    norm.y = Data<T>(y);
    return norm;
  }

  // Columns begin .. of qkv = their norm, all heads of a row together.
  template <typename T>
  void NormHeads(const at::Tensor& weight, int64_t begin) {
    at::Tensor part = qkv.narrow(1, begin, weight.size(0));
    const at::Tensor dense = part.contiguous();
    RmsNormForwardCuda(NormOf<T>(weight, dense, dense), stream);
    part.copy_(dense);
  }

  // Products in FP8 whose scales the reader multiplies in before it rounds them, as training's products are
  // rounded once scaled.
  struct Unscaled {
    const float* values = nullptr;  // null: the product is whole
    ProductScale scale;
  };

  // out = x W^T + bias; or, without its scales, floats = x W^T.
  Unscaled FloatProduct(const at::Tensor& x, const at::Tensor& x8, const at::Tensor& x_scale,
                        const CudaLinear& linear, at::Tensor& out, at::Tensor& floats, Reader reader) const {
    const bool fp8 = linear.scale.defined() && TensorCoresTake(linear.weight) && !linear.bias.defined();
    if (!fp8 || reader == Reader::kOther) {
      Product(x, x8, x_scale, linear, out, reader);
      return {};
    }
    return {ConstData<float>(floats), Product(x, x8, x_scale, linear, floats)};
  }

  // out = x W^T + bias. Returns the scales that its reader must still multiply in: the FP8 units' kernels
  // that know no scales are the fastest where there are few rows.
  ProductScale Product(const at::Tensor& x, const at::Tensor& x8, const at::Tensor& x_scale,
                       const CudaLinear& linear, at::Tensor& out, Reader reader = Reader::kKernel) const {
    const at::Tensor weight = linear.weight.t();
    if (!linear.scale.defined()) {
      if (linear.bias.defined()) {
        at::addmm_out(out, linear.bias, x, weight);
      } else if (!FewTokensInto(out, x, linear.weight) && !ChosenProductInto(out, x, weight)) {
        at::mm_out(out, x, weight);
      }
    } else if (TensorCoresTake(linear.weight) && !linear.bias.defined() && reader == Reader::kKernel) {
      if (!ChosenProductInto(out, x8, weight)) {
        at::_scaled_mm_out(out, x8, weight, weights.one(), weights.one(), std::nullopt, std::nullopt,
                           out.scalar_type(), /*use_fast_accum=*/true);
      }
      return {ConstData<float>(x_scale), ConstData<float>(linear.scale)};
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
    return {};
  }

  // out = x W^T for a weight W [out, in]. False, and nothing done, where cuBLAS is faster.
  bool FewTokensInto(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight) const {
    if (x.scalar_type() != at::kBFloat16) return false;
    const FewTokensProduct product{x.size(0),
                                   weight.size(1),
                                   weight.size(0),
                                   ConstData<BFloat16>(x),
                                   ConstData<BFloat16>(weight),
                                   Data<BFloat16>(out)};
    if (!PaysFewTokensProductCuda(product)) return false;
    FewTokensProductCuda(product, stream);
    return true;
  }

  template <typename T>
  void Rotate(const LayerWeights& layer, size_t i) {
    const at::Tensor &q_norm = layer[kQueryNorm].weight, &k_norm = layer[kKeyNorm].weight;
    if (config.qk_norm == QkNorm::kAllHeads) {
      NormHeads<T>(q_norm, 0);
      NormHeads<T>(k_norm, config.q_width());
    }
    const bool by_head = config.qk_norm == QkNorm::kHead;
    const RotationTable& table = config.rotary[i] ? rotation : no_rotation;
    const RotaryInput<T> in{rows,
                            static_cast<int>(config.heads),
                            static_cast<int>(config.kv_heads),
                            static_cast<int>(config.head_dim),
                            ConstData<T>(qkv),
                            by_head ? ConstData<T>(q_norm) : nullptr,
                            by_head ? ConstData<T>(k_norm) : nullptr,
                            static_cast<float>(config.rms_norm_eps),
                            IntData(batch.positions),
                            ConstData<float>(table.cos),
                            ConstData<float>(table.sin),
                            qkv_product.scale,
                            qkv_product.values};
    const at::Tensor& written = batch.written_table.defined() ? batch.written_table : batch.page_table;
    PagedKv<T> to{.page_size = static_cast<int>(kCudaPageTokens),
                  .page_table = IntData(written),
                  .table_stride = written.stride(0),
                  .sequence = IntData(batch.owners)};
    if (pages.scales.defined()) {
      to.keys_fp8 = Pages<uint8_t>(i, 0);
      to.values_fp8 = Pages<uint8_t>(i, 1);
      to.key_scale = Scales(i, 0);
      to.value_scale = Scales(i, 1);
    } else {
      to.keys = Pages<T>(i, 0);
      to.values = Pages<T>(i, 1);
    }
    RotaryForwardCuda(in, Data<T>(rotated), &to, stream);
  }

  // torch's flash kernels take half precision and whole vectors alone.
  bool UsesFlash() const {
    return batch.cu_seqlens.defined() && rotated.scalar_type() == at::kBFloat16 && config.head_dim % 8 == 0 &&
           config.head_dim <= 256;
  }

  template <typename T>
  void Attend(size_t i) {
    if (UsesFlash()) {
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
      if (pages.scales.defined()) {
        in.keys_fp8 = Pages<uint8_t>(i, 0);
        in.values_fp8 = Pages<uint8_t>(i, 1);
        in.key_scale = Scales(i, 0);
        in.value_scale = Scales(i, 1);
      } else {
        in.keys = Pages<T>(i, 0);
        in.values = Pages<T>(i, 1);
      }
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

  // Keys (part 0) or values (part 1) of a layer.
  template <typename T>
  T* Pages(size_t layer, int64_t part) const {
    return At<T>(pages.memory, layer, part);
  }
  float* Scales(size_t layer, int64_t part) const { return At<float>(pages.scales, layer, part); }
  template <typename T>
  static T* At(const at::Tensor& memory, size_t layer, int64_t part) {
    return Data<T>(memory) + static_cast<int64_t>(layer) * memory.stride(0) + part * memory.stride(1);
  }

  const CudaWeights& weights;
  const ModelConfig& config;
  const RotationTable &rotation, &no_rotation;
  PartTimer* const parts;
  const CudaBatch& batch;
  const CudaPages& pages;
  int64_t rows;
  const CudaExpertRows& experts;
  void* stream;
  at::Tensor hidden, delta, normal, qkv, rotated, mixed, gate_up, inner;
  at::Tensor operand;        // of the next product: normal or hidden
  int64_t sparse_layer = 0;  // how many the pass has come through
  at::Tensor hidden8, mixed8, inner8, scale8, mixed_scale8, inner_scale8;
  at::Tensor float_qkv, float_delta;    // where FP8 products stand before their scales are multiplied in
  Unscaled qkv_product, delta_product;  // those that stand there
};

CudaForward::CudaForward(const CudaWeights& weights, PartTimer* parts)
    : weights_(weights),
      parts_(parts),
      rotation_(
          MakeRotationTable(weights.model().inverse_frequencies, weights.model().config.max_positions)) {
  const auto one_by_one = [&](const LayerWeights& layer) {
    return layer.sparse() && !(HasGroupedExperts(weights, layer[kExpertsGateUp].weight) &&
                               HasGroupedExperts(weights, layer[kExpertsDown].weight));
  };
  waits_ = std::ranges::any_of(weights.model().layers, one_by_one);
  if (std::ranges::count(weights.model().config.rotary, false) > 0) no_rotation_ = WithoutRotation(rotation_);
}

at::Tensor CudaForward::Run(const CudaBatch& batch, const CudaPages& pages, CudaRows& memory) const {
  Pass pass(*this, batch, pages, memory);
  WithElementType(pass.hidden, [&]<typename T>(T) { pass.Layers<T>(); });
  return pass.operand;
}

void CudaForward::Head(const at::Tensor& hidden, at::Tensor& out) const {
  const at::Tensor head = weights_.model().head.t();
  if (hidden.scalar_type() == at::kFloat) {
    at::mm_out(out, hidden, head);
  } else if (!ChosenProductInto(out, hidden, head)) {
    at::mm_out(out, hidden, head, at::kFloat);
  }
}

}  // namespace augur
