#include "ops/layer/attention_cudnn.h"

#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cudnn/Handle.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/diff.h>
#include <ATen/ops/empty.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "ops/device.h"

namespace augur {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using TensorInfo = fe::graph::Tensor_attributes;
using TensorRef = std::shared_ptr<TensorInfo>;

constexpr int64_t kLeastTokens = 4096;  // below, a plan costs more than the faster kernels gain

// What cuDNN names the tensors of a plan by.
enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kSoftmax,
  kGradOut,
  kGradQ,
  kGradK,
  kGradV,
  kLengths,
  kQRows,  // where each sequence begins in the tensors, in elements; k's are q's
  kVRows,
  kOutRows,
  kSoftmaxRows,
  kGradVRows,
};

// The shape a plan is made for. Sequences, lengths and tokens are rounded up.
struct Shape {
  int64_t device, heads, kv_heads, head_dim;
  int64_t sequences, length, tokens;
  int64_t qk_row, v_row;  // elements from one token to the next
  bool backward;
  bool deterministic;

  auto operator<=>(const Shape&) const = default;
};

// To 2^n or 3 * 2^(n - 1), so that few plans serve all batches.
int64_t RoundUpTo(int64_t n) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
  return power >= 4 && n <= power / 4 * 3 ? power / 4 * 3 : power;
}

Shape MakeCudnnShape(const AttentionHeads& heads, const SequenceLayout& layout, bool backward) {
  return {.device = heads.q.device().index(),
          .heads = heads.q.size(1),
          .kv_heads = heads.k.size(1),
          .head_dim = heads.q.size(2),
          .sequences = RoundUpTo(layout.cu_seqlens.size(0) - 1),
          .length = RoundUpTo(std::max<int64_t>(layout.max_length, 128)),
          .tokens = RoundUpTo(std::max<int64_t>(heads.q.size(0), 1024)),
          .qk_row = heads.q.stride(0),
          .v_row = heads.v.stride(0),
          .backward = backward,
          .deterministic = backward && at::globalContext().deterministicAlgorithms()};
}

void Check(fe::error_t status, std::string_view what) {
  if (status.is_bad()) {
    throw Error("cuDNN attention", fmt::format("{}: {}", what, status.get_message()),
                "set AUGUR_CUDNN=0 in the environment to compute with torch's flash kernels");
  }
}

class Builder {
 public:
  explicit Builder(const Shape& shape) : shape_(shape), graph_(std::make_shared<Graph>()) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  std::shared_ptr<Graph> Forward() {
    const TensorRef q_rows = Offsets(kQRows);
    const TensorRef q = Rows("q", kQ, shape_.heads, shape_.qk_row, q_rows);
    const TensorRef k = Rows("k", kK, shape_.kv_heads, shape_.qk_row, q_rows);
    const TensorRef v = Rows("v", kV, shape_.kv_heads, shape_.v_row, Offsets(kVRows));
    const TensorRef lengths = Integers("lengths", kLengths, shape_.sequences);
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_causal_mask(true)
                       .set_attn_scale(Scale())
                       .set_padding_mask(true)
                       .set_seq_len_q(lengths)
                       .set_seq_len_kv(lengths);
    auto [out, softmax] = graph_->sdpa(q, k, v, options);
    Output(out, kOut, shape_.heads, out_row(), Offsets(kOutRows));
    softmax->set_output(true)
        .set_uid(kSoftmax)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({shape_.sequences, shape_.heads, shape_.length, 1})
        .set_stride({shape_.length * shape_.heads, 1, shape_.heads, 1})
        .set_ragged_offset(Offsets(kSoftmaxRows));
    return Finish();
  }

  std::shared_ptr<Graph> Backward() {
    const TensorRef q_rows = Offsets(kQRows), out_rows = Offsets(kOutRows);
    const TensorRef q = Rows("q", kQ, shape_.heads, shape_.qk_row, q_rows);
    const TensorRef k = Rows("k", kK, shape_.kv_heads, shape_.qk_row, q_rows);
    const TensorRef v = Rows("v", kV, shape_.kv_heads, shape_.v_row, Offsets(kVRows));
    const TensorRef out = Rows("out", kOut, shape_.heads, out_row(), out_rows);
    const TensorRef grad_out = Rows("grad_out", kGradOut, shape_.heads, out_row(), out_rows);
    const TensorRef softmax =
        graph_->tensor(TensorInfo()
                           .set_name("softmax")
                           .set_uid(kSoftmax)
                           .set_data_type(fe::DataType_t::FLOAT)
                           .set_dim({shape_.sequences, shape_.heads, shape_.length, 1})
                           .set_stride({shape_.length * shape_.heads, 1, shape_.heads, 1})
                           .set_ragged_offset(Offsets(kSoftmaxRows)));
    const TensorRef lengths = Integers("lengths", kLengths, shape_.sequences);
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_backward")
                       .set_causal_mask(true)
                       .set_attn_scale(Scale())
                       .set_padding_mask(true)
                       .set_seq_len_q(lengths)
                       .set_seq_len_kv(lengths)
                       .set_deterministic_algorithm(shape_.deterministic)
                       .set_max_total_seq_len_q(shape_.tokens)
                       .set_max_total_seq_len_kv(shape_.tokens);
    auto [grad_q, grad_k, grad_v] = graph_->sdpa_backward(q, k, v, out, grad_out, softmax, options);
    // Its sums in float32 lie like q's gradient and are read, wrongly for any other layout, as if like q.
    Output(grad_q, kGradQ, shape_.heads, shape_.qk_row, q_rows);
    Output(grad_k, kGradK, shape_.kv_heads, shape_.qk_row, q_rows);
    Output(grad_v, kGradV, shape_.kv_heads, shape_.kv_heads * shape_.head_dim, Offsets(kGradVRows));
    return Finish();
  }

 private:
  int64_t out_row() const { return shape_.heads * shape_.head_dim; }
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

  TensorRef Integers(const char* name, Uid uid, int64_t count) {
    return graph_->tensor(TensorInfo()
                              .set_name(name)
                              .set_uid(uid)
                              .set_data_type(fe::DataType_t::INT32)
                              .set_dim({count, 1, 1, 1})
                              .set_stride({1, 1, 1, 1}));
  }
  TensorRef Offsets(Uid uid) {
    return Integers(fmt::format("rows{}", static_cast<int64_t>(uid)).c_str(), uid, shape_.sequences + 1);
  }
  TensorRef Rows(const char* name, Uid uid, int64_t heads, int64_t row, const TensorRef& offsets) {
    return graph_->tensor(TensorInfo()
                              .set_name(name)
                              .set_uid(uid)
                              .set_dim({shape_.sequences, heads, shape_.length, shape_.head_dim})
                              .set_stride({shape_.length * row, shape_.head_dim, row, 1})
                              .set_ragged_offset(offsets));
  }
  void Output(const TensorRef& tensor, Uid uid, int64_t heads, int64_t row, const TensorRef& offsets) {
    tensor->set_output(true)
        .set_uid(uid)
        .set_dim({shape_.sequences, heads, shape_.length, shape_.head_dim})
        .set_stride({shape_.length * row, shape_.head_dim, row, 1})
        .set_ragged_offset(offsets);
  }

  std::shared_ptr<Graph> Finish() {
    const cudnnHandle_t handle = at::native::getCudnnHandle();
    Check(graph_->validate(), "describing the plan");
    Check(graph_->build_operation_graph(handle), "building the graph");
    Check(graph_->create_execution_plans({fe::HeurMode_t::A}), "choosing a kernel");
    Check(graph_->check_support(handle), "this shape");
    Check(graph_->build_plans(handle), "building the plan");
    return graph_;
  }

  const Shape shape_;
  std::shared_ptr<Graph> graph_;
};

// Plans are kept for the life of the program. One thread at a time, as cuDNN does not promise more.
std::mutex plans_mutex;

Graph& PlanFor(const Shape& shape) {
  static std::map<Shape, std::shared_ptr<Graph>> plans;
  std::shared_ptr<Graph>& plan = plans[shape];
  if (plan == nullptr) plan = shape.backward ? Builder(shape).Backward() : Builder(shape).Forward();
  return *plan;
}

// The sequences' lengths and beginnings as a plan reads them: sequences that only round up are empty.
struct Places {
  at::Tensor bounds;  // [sequences + 1], in tokens
  at::Tensor lengths;
  at::Tensor q, v, out, softmax, grad_v;

  Places(const Shape& shape, const at::Tensor& cu_seqlens) {
    const int64_t added = shape.sequences + 1 - cu_seqlens.size(0);
    bounds = added == 0 ? cu_seqlens : at::cat({cu_seqlens, cu_seqlens.slice(0, -1).expand({added})});
    lengths = at::diff(bounds);
    q = bounds * shape.qk_row;
    v = bounds * shape.v_row;
    out = bounds * (shape.heads * shape.head_dim);
    softmax = bounds * shape.heads;
    grad_v = bounds * (shape.kv_heads * shape.head_dim);
  }
};

using Pointers = std::unordered_map<int64_t, void*>;

void Execute(const Shape& shape, const AttentionHeads& heads, const Places& places, Pointers pointers) {
  for (const auto& [uid, tensor] : {std::pair<Uid, const at::Tensor*>(kQ, &heads.q),
                                    {kK, &heads.k},
                                    {kV, &heads.v},
                                    {kLengths, &places.lengths},
                                    {kQRows, &places.q},
                                    {kVRows, &places.v},
                                    {kOutRows, &places.out},
                                    {kSoftmaxRows, &places.softmax}}) {
    pointers[uid] = tensor->data_ptr();
  }
  if (shape.backward) pointers[kGradVRows] = places.grad_v.data_ptr();
  const std::lock_guard<std::mutex> lock(plans_mutex);
  Graph& plan = PlanFor(shape);
  int64_t bytes = 0;
  Check(plan.get_workspace_size(bytes), "sizing the workspace");
  const at::Tensor workspace = at::empty({bytes}, heads.q.options().dtype(at::kByte));
  Check(plan.execute(at::native::getCudnnHandle(), pointers, workspace.data_ptr()), "running the plan");
}

bool Wanted() {
  static const bool wanted = [] {
    const char* set = std::getenv("AUGUR_CUDNN");
    return set == nullptr || std::string_view(set) != "0";
  }();
  return wanted;
}

}  // namespace

bool CudnnAttentionPays(const AttentionHeads& heads, const SequenceLayout& layout) {
  constexpr int64_t kMostElements = int64_t{1} << 31;  // offsets are ints
  return Wanted() && heads.q.size(0) >= kLeastTokens && layout.max_length >= 512 &&
         heads.q.size(2) % 8 == 0 && heads.q.size(2) <= 128 &&
         heads.q.size(0) * heads.v.stride(0) < kMostElements && GpuGeneration(heads.q) / 10 == 9;
}

std::pair<at::Tensor, at::Tensor> CudnnAttentionForward(const AttentionHeads& heads,
                                                        const SequenceLayout& layout) {
  const Shape shape = MakeCudnnShape(heads, layout, /*backward=*/false);
  const auto options = heads.q.options();
  const at::Tensor out = at::empty(heads.q.sizes(), options);
  const at::Tensor softmax = at::empty({heads.q.size(0), shape.heads, 1}, options.dtype(at::kFloat));
  Execute(shape, heads, Places(shape, layout.cu_seqlens),
          {{kOut, out.data_ptr()}, {kSoftmax, softmax.data_ptr()}});
  return {out, softmax};
}

AttentionHeads CudnnAttentionBackward(const at::Tensor& grad_out, const AttentionHeads& heads,
                                      const at::Tensor& out, const at::Tensor& softmax,
                                      const SequenceLayout& layout) {
  const Shape shape = MakeCudnnShape(heads, layout, /*backward=*/true);
  const at::Tensor grad_qk =
      at::empty({heads.q.size(0), shape.heads + shape.kv_heads, shape.head_dim}, heads.q.options());
  const AttentionHeads grads{grad_qk.narrow(1, 0, shape.heads),
                             grad_qk.narrow(1, shape.heads, shape.kv_heads),
                             at::empty(heads.v.sizes(), heads.q.options())};
  Execute(shape, heads, Places(shape, layout.cu_seqlens),
          {{kOut, out.data_ptr()},
           {kSoftmax, softmax.data_ptr()},
           {kGradOut, grad_out.data_ptr()},
           {kGradQ, grads.q.data_ptr()},
           {kGradK, grads.k.data_ptr()},
           {kGradV, grads.v.data_ptr()}});
  return grads;
}

}  // namespace augur
