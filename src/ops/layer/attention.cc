#include "ops/layer/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/layer/attention.h"
#include "kernels/layer/rotary.h"
#include "ops/device.h"
#include "ops/layer/attention_cudnn.h"
#include "ops/layer/rms_norm.h"
#include "ops/typed_data.h"

namespace augur {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The tensors of one call, as the kernels see them.
template <typename T>
RotaryInput<T> MakeRotaryInput(const at::Tensor& qkv, const at::Tensor& q_norm, const at::Tensor& k_norm,
                               const SequenceLayout& layout, const AttentionSettings& settings) {
  return {.tokens = qkv.size(0),
          .heads = static_cast<int>(settings.heads),
          .kv_heads = static_cast<int>(settings.kv_heads),
          .head_dim = static_cast<int>(settings.head_dim),
          .qkv = ConstData<T>(qkv),
          .q_norm = q_norm.defined() ? ConstData<T>(q_norm) : nullptr,
          .k_norm = k_norm.defined() ? ConstData<T>(k_norm) : nullptr,
          .eps = static_cast<float>(settings.eps),
          .positions = ConstData<int32_t>(layout.positions),
          .cos = ConstData<float>(layout.cos),
          .sin = ConstData<float>(layout.sin)};
}

AttentionShape MakeShape(const SequenceLayout& layout, const AttentionSettings& settings) {
  return {static_cast<int>(settings.heads), static_cast<int>(settings.kv_heads),
          static_cast<int>(settings.head_dim), layout.cu_seqlens.size(0) - 1,
          ConstData<int32_t>(layout.cu_seqlens)};
}

// Rows of a [tokens, row] array, from element `offset` of each.
template <typename T>
TokenRows<const T> ConstRows(const at::Tensor& tensor, int64_t offset) {
  return {ConstData<T>(tensor) + offset, tensor.size(1)};
}
template <typename T>
TokenRows<T> Rows(const at::Tensor& tensor, int64_t offset) {
  return {Data<T>(tensor) + offset, tensor.size(1)};
}

struct CpuAttention : torch::autograd::Function<CpuAttention> {
  using Optional = std::optional<at::Tensor>;  // autograd's functions refuse undefined tensors

  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv_in, const Optional& q_norm_in,
                            const Optional& k_norm_in, const SequenceLayout& layout,
                            const AttentionSettings& settings) {
    const at::Tensor q_norm = q_norm_in.value_or(at::Tensor()), k_norm = k_norm_in.value_or(at::Tensor());
    const at::Tensor qkv = qkv_in.contiguous();
    const int64_t tokens = qkv.size(0), q_width = settings.heads * settings.head_dim;
    const int64_t kv_width = settings.kv_heads * settings.head_dim;
    const at::Tensor rotated = at::empty({tokens, q_width + kv_width}, qkv.options());
    const at::Tensor out = at::empty({tokens, q_width}, qkv.options());
    const at::Tensor lse = at::empty({tokens, settings.heads}, qkv.options().dtype(at::kFloat));
    WithElementType(qkv, [&]<typename T>(T) {
      RotaryForwardCpu(MakeRotaryInput<T>(qkv, q_norm, k_norm, layout, settings), Data<T>(rotated));
      AttentionForwardCpu<T>(MakeShape(layout, settings), ConstRows<T>(rotated, 0),
                             ConstRows<T>(rotated, q_width), ConstRows<T>(qkv, q_width + kv_width),
                             Rows<T>(out, 0), Data<float>(lse));
    });
    context->save_for_backward({qkv, q_norm, k_norm, rotated, out, lse, layout.cu_seqlens, layout.positions,
                                layout.cos, layout.sin});
    context->saved_data["settings"] =
        std::vector<int64_t>{settings.heads, settings.kv_heads, settings.head_dim};
    context->saved_data["eps"] = settings.eps;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &qkv = saved[0], &q_norm = saved[1], &k_norm = saved[2], &rotated = saved[3];
    const at::Tensor &out = saved[4], &lse = saved[5];
    const SequenceLayout layout{saved[6], saved[7], 0, saved[8], saved[9]};
    const std::vector<int64_t> sizes = context->saved_data["settings"].toIntVector();
    const AttentionSettings settings{sizes[0], sizes[1], sizes[2], context->saved_data["eps"].toDouble()};
    const int64_t q_width = settings.heads * settings.head_dim,
                  kv_width = settings.kv_heads * settings.head_dim;
    const at::Tensor grad_out = grads[0].contiguous();
    const at::Tensor grad = at::empty_like(qkv);
    const at::Tensor grad_norms = at::empty({2, settings.head_dim}, qkv.options().dtype(at::kFloat));
    WithElementType(qkv, [&]<typename T>(T) {
      AttentionBackwardCpu<T>(MakeShape(layout, settings), ConstRows<T>(rotated, 0),
                              ConstRows<T>(rotated, q_width), ConstRows<T>(qkv, q_width + kv_width),
                              ConstRows<T>(out, 0), ConstData<float>(lse), ConstRows<T>(grad_out, 0),
                              Rows<T>(grad, 0), Rows<T>(grad, q_width), Rows<T>(grad, q_width + kv_width));
      RotaryBackwardCpu(MakeRotaryInput<T>(qkv, q_norm, k_norm, layout, settings), Data<T>(grad),
                        Data<float>(grad_norms));
    });
    if (!q_norm.defined()) return {grad, {}, {}, {}, {}};
    const at::Tensor rounded = grad_norms.to(q_norm.scalar_type());
    return {grad, rounded[0], rounded[1], {}, {}};
  }
};

at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor a = x.narrow(-1, 0, half).to(at::kFloat), b = x.narrow(-1, half, half).to(at::kFloat);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1).to(x.scalar_type());
}

AttentionHeads SplitAndRotate(const at::Tensor& qkv, const at::Tensor& q_norm, const at::Tensor& k_norm,
                              const SequenceLayout& layout, const AttentionSettings& settings) {
  const at::Tensor rows = qkv.view({qkv.size(0), -1, settings.head_dim});
  AttentionHeads heads{rows.narrow(1, 0, settings.heads), rows.narrow(1, settings.heads, settings.kv_heads),
                       rows.narrow(1, settings.heads + settings.kv_heads, settings.kv_heads)};
  if (q_norm.defined()) {
    heads.q = RmsNormReference(heads.q, q_norm, settings.eps);
    heads.k = RmsNormReference(heads.k, k_norm, settings.eps);
  }
  const at::Tensor cos = layout.cos.index_select(0, layout.positions).unsqueeze(1);
  const at::Tensor sin = layout.sin.index_select(0, layout.positions).unsqueeze(1);
  heads.q = Rotate(heads.q, cos, sin);
  heads.k = Rotate(heads.k, cos, sin);
  return heads;
}

// Rotation by the kernel, attention by cuDNN's kernels or torch's flash kernels.
struct FlashAttention : torch::autograd::Function<FlashAttention> {
  using Optional = CpuAttention::Optional;

  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv_in, const Optional& q_norm_in,
                            const Optional& k_norm_in, const SequenceLayout& layout,
                            const AttentionSettings& settings) {
    const at::Tensor q_norm = q_norm_in.value_or(at::Tensor()), k_norm = k_norm_in.value_or(at::Tensor());
    const at::Tensor qkv = qkv_in.contiguous();
    const at::Tensor rotated =
        at::empty({qkv.size(0), settings.heads + settings.kv_heads, settings.head_dim}, qkv.options());
    RotaryForwardCuda<BFloat16>(MakeRotaryInput<BFloat16>(qkv, q_norm, k_norm, layout, settings),
                                Data<BFloat16>(rotated), nullptr, CurrentStream(qkv));
    const AttentionHeads heads = SplitHeads(rotated, qkv, settings);
    at::Tensor out, softmax, state, unused;
    const bool cudnn = CudnnAttentionPays(heads, layout);
    if (cudnn) {
      std::tie(out, softmax) = CudnnAttentionForward(heads, layout);
    } else {
      std::tie(out, softmax, state, unused, std::ignore) = at::_flash_attention_forward(
          heads.q, heads.k, heads.v, layout.cu_seqlens, layout.cu_seqlens, layout.max_length,
          layout.max_length, /*dropout_p=*/0.0, /*is_causal=*/true, /*return_debug_mask=*/false);
    }
    context->save_for_backward({qkv, q_norm, k_norm, rotated, out, softmax, state, unused, layout.cu_seqlens,
                                layout.positions, layout.cos, layout.sin});
    context->saved_data["settings"] =
        std::vector<int64_t>{settings.heads, settings.kv_heads, settings.head_dim, layout.max_length};
    context->saved_data["eps"] = settings.eps;
    context->saved_data["cudnn"] = cudnn;
    return out.flatten(1);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &qkv = saved[0], &q_norm = saved[1], &k_norm = saved[2], &out = saved[4];
    const std::vector<int64_t> sizes = context->saved_data["settings"].toIntVector();
    const SequenceLayout layout{saved[8], saved[9], sizes[3], saved[10], saved[11]};
    const AttentionSettings settings{sizes[0], sizes[1], sizes[2], context->saved_data["eps"].toDouble()};
    const AttentionHeads heads = SplitHeads(saved[3], qkv, settings);
    const at::Tensor grad_out = grads[0].contiguous().view(out.sizes());
    AttentionHeads grad_heads;
    if (context->saved_data["cudnn"].toBool()) {
      grad_heads = CudnnAttentionBackward(grad_out, heads, out, saved[5], layout);
    } else {
      std::tie(grad_heads.q, grad_heads.k, grad_heads.v) = at::_flash_attention_backward(
          grad_out, heads.q, heads.k, heads.v, out, saved[5], layout.cu_seqlens, layout.cu_seqlens,
          layout.max_length, layout.max_length, /*dropout_p=*/0.0, /*is_causal=*/true, saved[6], saved[7]);
    }
    const at::Tensor grad = at::empty_like(qkv);
    const auto floats = qkv.options().dtype(at::kFloat);
    const at::Tensor partial = at::empty({RotaryPartialRows(), 2 * settings.head_dim}, floats);
    const at::Tensor grad_norms = at::empty({2, settings.head_dim}, floats);
    const RotaryGradients<BFloat16> from{ConstData<BFloat16>(grad_heads.q),
                                         ConstData<BFloat16>(grad_heads.k),
                                         ConstData<BFloat16>(grad_heads.v),
                                         grad_heads.q.stride(0),
                                         grad_heads.k.stride(0),
                                         grad_heads.v.stride(0)};
    RotaryBackwardCuda<BFloat16>(MakeRotaryInput<BFloat16>(qkv, q_norm, k_norm, layout, settings), from,
                                 Data<BFloat16>(grad), Data<float>(partial), Data<float>(grad_norms),
                                 CurrentStream(qkv));
    if (!q_norm.defined()) return {grad, {}, {}, {}, {}};
    const at::Tensor rounded = grad_norms.to(q_norm.scalar_type());
    return {grad, rounded[0], rounded[1], {}, {}};
  }

  static AttentionHeads SplitHeads(const at::Tensor& rotated, const at::Tensor& qkv,
                                   const AttentionSettings& settings) {
    const at::Tensor rows = qkv.view({qkv.size(0), -1, settings.head_dim});
    return {rotated.narrow(1, 0, settings.heads), rotated.narrow(1, settings.heads, settings.kv_heads),
            rows.narrow(1, settings.heads + settings.kv_heads, settings.kv_heads)};
  }
};

// Causal attention of packed sequences in float32 [tokens, heads, head_dim], heads of keys and values already
// repeated, without the scores in memory. The sums of the backward are not divided, so that they repeat.
struct EfficientAttention : torch::autograd::Function<EfficientAttention> {
  static constexpr int64_t kCausal = 1;  // of torch's kinds of masks

  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const SequenceLayout& layout) {
    const auto [out, log_sum, seed, offset, most_q, most_k] = at::_efficient_attention_forward(
        q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), /*bias=*/{}, layout.cu_seqlens, layout.cu_seqlens,
        layout.max_length, layout.max_length, /*dropout_p=*/0.0, kCausal, /*compute_log_sumexp=*/true);
    context->save_for_backward({q, k, v, out, log_sum, seed, offset, layout.cu_seqlens});
    context->saved_data["longest"] = layout.max_length;
    return out.squeeze(0);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const int64_t longest = context->saved_data["longest"].toInt();
    const auto [q, k, v, bias] = at::_efficient_attention_backward(
        grads[0].contiguous().unsqueeze(0), saved[0].unsqueeze(0), saved[1].unsqueeze(0),
        saved[2].unsqueeze(0), /*bias=*/{}, saved[3], saved[7], saved[7], longest, longest, saved[4],
        /*dropout_p=*/0.0, saved[5], saved[6], kCausal, /*bias_requires_grad=*/false, /*scale=*/std::nullopt,
        /*num_splits_key=*/1);
    return {q.squeeze(0), k.squeeze(0), v.squeeze(0), {}};
  }
};

// For what the flash kernels do not take: float32, and heads that are no whole vectors of theirs.
at::Tensor FloatAttention(const at::Tensor& qkv, const at::Tensor& q_norm, const at::Tensor& k_norm,
                          const SequenceLayout& layout, const AttentionSettings& settings) {
  const AttentionHeads heads = SplitAndRotate(qkv, q_norm, k_norm, layout, settings);
  const auto floats = [&](const at::Tensor& x) {
    return x.to(at::kFloat).repeat_interleave(settings.heads / x.size(1), 1).contiguous();
  };
  return EfficientAttention::apply(floats(heads.q), floats(heads.k), floats(heads.v), layout)
      .flatten(1)
      .to(qkv.scalar_type());
}

}  // namespace

at::Tensor RotaryAttention(const at::Tensor& qkv, const at::Tensor& q_norm, const at::Tensor& k_norm,
                           const SequenceLayout& layout, const AttentionSettings& settings) {
  if (qkv.is_cpu()) {
    return CpuAttention::apply(qkv, CpuAttention::Optional(q_norm), CpuAttention::Optional(k_norm), layout,
                               settings);
  }
  // torch's flash kernels take half precision and whole vectors alone.
  const bool fits = settings.head_dim % 8 == 0 && settings.head_dim <= 256;
  if (qkv.scalar_type() == at::kBFloat16 && fits && BuiltWithCuda()) {
    return FlashAttention::apply(qkv, FlashAttention::Optional(q_norm), FlashAttention::Optional(k_norm),
                                 layout, settings);
  }
  if (settings.head_dim % 4 == 0) return FloatAttention(qkv, q_norm, k_norm, layout, settings);
  return RotaryAttentionReference(qkv, q_norm, k_norm, layout, settings);
}

at::Tensor RotaryAttentionReference(const at::Tensor& qkv, const at::Tensor& q_norm, const at::Tensor& k_norm,
                                    const SequenceLayout& layout, const AttentionSettings& settings) {
  const AttentionHeads heads = SplitAndRotate(qkv, q_norm, k_norm, layout, settings);
  const at::Tensor bounds = layout.cu_seqlens.cpu();
  const double scale = 1.0 / std::sqrt(static_cast<double>(settings.head_dim));
  std::vector<at::Tensor> outs;
  for (int64_t s = 0; s + 1 < bounds.size(0); ++s) {
    const int64_t begin = bounds[s].item<int32_t>(), length = bounds[s + 1].item<int32_t>() - begin;
    auto by_head = [&](const at::Tensor& x) {  // [heads, length, head_dim] float32
      const at::Tensor part = x.narrow(0, begin, length).to(at::kFloat).transpose(0, 1);
      return part.repeat_interleave(settings.heads / part.size(0), 0);
    };
    const at::Tensor future = at::ones({length, length}, bounds.options().dtype(at::kBool)).triu(1);
    at::Tensor scores = at::matmul(by_head(heads.q), by_head(heads.k).transpose(1, 2)) * scale;
    scores = scores.masked_fill(future.to(qkv.device()), -std::numeric_limits<double>::infinity());
    const at::Tensor out = at::matmul(scores.softmax(-1), by_head(heads.v));  // [heads, length, head_dim]
    outs.push_back(out.transpose(0, 1).flatten(1).to(qkv.scalar_type()));
  }
  return at::cat(outs, 0);
}

}  // namespace augur
