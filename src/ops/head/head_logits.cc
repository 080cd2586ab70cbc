#include "ops/head/head_logits.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/round_up.h"
#include "base/stop_signals.h"
#include "kernels/head/support_logits.h"
#include "ops/launch.h"
#include "ops/layer/product.h"
#include "ops/parallel/collectives.h"

namespace augur {
namespace {

constexpr int64_t kCudaChunkBytes = int64_t{1228} << 20;
constexpr int64_t kCpuChunkBytes = int64_t{96} << 20;
constexpr int64_t kRowMultiple = 128;    // GEMM tiles
constexpr int64_t kAlignedElements = 8;  // 16 bytes of bf16: GEMMs and sweeps need rows that start so

int64_t CheckedHeadVocabSize(const Head& head, const HeadOptions& options) {
  const int64_t rows = head.weight.size(0), size = options.logits.vocab_size;
  if (options.group.empty()) {
    if (size < 0 || size > rows) {
      throw Error("vocab_size", fmt::format("is {}, but the head has {} rows", size, rows),
                  "pass the real vocabulary size, or 0 for all rows");
    }
    return size == 0 ? rows : size;
  }
  if (size < 1) {
    throw Error("vocab_size", fmt::format("is {} for a head spread over a group", size),
                "pass the size of the whole vocabulary");
  }
  if (options.vocab_start < 0) {
    throw Error("vocab_start", fmt::format("is {}", options.vocab_start),
                "pass the number of this rank's first row");
  }
  return size;
}

}  // namespace

HeadWants WantsOf(const Head& head) {
  if (!at::GradMode::is_enabled()) return {};
  return {head.hidden.requires_grad(), head.weight.requires_grad(),
          head.bias.defined() && head.bias.requires_grad()};
}

int64_t CheckHead(const Head& head, const HeadOptions& options) {
  CheckRows({"hidden", head.hidden}, "[T, d]");
  CheckShape({"head_weight", head.weight}, {-1, -1});
  CheckFloating({"hidden", head.hidden});
  if (head.weight.size(1) != head.hidden.size(1)) {
    throw Error(
        "head_weight",
        fmt::format("has rows of {} while hidden has rows of {}", head.weight.size(1), head.hidden.size(1)),
        "pass the head [V, d] that belongs to these hidden states [T, d]");
  }
  if (head.bias.defined()) CheckShape({"bias", head.bias}, {head.weight.size(0)});
  for (const auto& [name, tensor] :
       {NamedTensor{"head_weight", head.weight}, NamedTensor{"bias", head.bias}}) {
    if (!tensor.defined() || tensor.scalar_type() == head.hidden.scalar_type()) continue;
    throw Error(name,
                fmt::format("has dtype {} while hidden has {}", c10::toString(tensor.scalar_type()),
                            c10::toString(head.hidden.scalar_type())),
                "convert one of them");
  }
  CheckSameDevice({{"hidden", head.hidden}, {"head_weight", head.weight}, {"bias", head.bias}});
  if (options.chunk < 0) {
    throw Error("chunk", fmt::format("is {}", options.chunk),
                "pass a number of tokens, or leave it out for the default");
  }
  CheckLogitOptions(options.logits);
  return CheckedHeadVocabSize(head, options);
}

Head ReadableHead(const Head& head) {
  const bool widen = head.hidden.is_cpu() && head.hidden.scalar_type() == at::kHalf;
  const auto readable = [&](const at::Tensor& x) {
    if (!x.defined()) return x;
    return (widen ? x.detach().to(at::kFloat) : x.detach()).contiguous();
  };
  return {readable(head.hidden), readable(head.weight), readable(head.bias)};
}

at::Tensor InertTokens(const RecordedTokens& recorded, const LossTerms& terms) {
  at::Tensor inert = recorded.support_logprobs.select(1, 0).eq(-INFINITY);
  if (recorded.weights.defined()) inert.logical_or_(recorded.weights.eq(0));
  if (!terms.beyond_rule()) inert.logical_or_(recorded.advantages.eq(0));
  return inert;
}

RowOrder::RowOrder(const at::Tensor& inert, int64_t tokens) : tokens(tokens), active(tokens) {
  if (!inert.defined()) return;
  const int64_t count = inert.sum().item<int64_t>();
  active = tokens - count;
  if (count > 0 && active > 0) order = at::argsort(inert.to(at::kByte), /*stable=*/true, 0, false);
}

at::Tensor RowOrder::Sorted(const at::Tensor& x) const {
  return order.defined() && x.defined() ? x.index_select(0, order) : x;
}

at::Tensor RowOrder::Restored(const at::Tensor& x) const {
  return order.defined() ? at::empty_like(x).index_copy_(0, order, x) : x;
}

HeadLogits::HeadLogits(const Head& head, const HeadOptions& options, int64_t vocab_size)
    : head_(head), options_(options) {
  const int64_t held = std::clamp<int64_t>(vocab_size - options.vocab_start, 0, head.weight.size(0));
  shard_ = {options.group, options.vocab_start, held};
  const int64_t ranks = options.group.empty() ? 1 : GroupSize(options.group);
  row_elements_ = std::max<int64_t>((vocab_size + ranks - 1) / ranks, 1);
  weight_ = head.weight.narrow(0, 0, held);
  factor_ = Factor(weight_);
  if (head.bias.defined()) bias_ = head.bias.narrow(0, 0, held);
}

at::Tensor HeadLogits::LocalIds(const at::Tensor& support) const {
  return parallel() ? LocalSupport(support, shard_) : support;
}

int64_t HeadLogits::ChunkRows(int64_t tokens) const {
  const int64_t least = std::max<int64_t>(tokens, 1);
  if (options_.chunk > 0) return std::min(options_.chunk, least);
  const int64_t budget = head_.hidden.is_cuda() ? kCudaChunkBytes : kCpuChunkBytes;
  const int64_t row_bytes = row_elements_ * head_.hidden.element_size();
  const int64_t most = std::max(budget / row_bytes / kRowMultiple * kRowMultiple, kRowMultiple);
  const int64_t chunks = std::max<int64_t>((tokens + most - 1) / most, 1);
  return std::clamp<int64_t>(RoundUp((tokens + chunks - 1) / chunks, kRowMultiple), 1, least);
}

int64_t HeadLogits::Chunks(int64_t tokens) const {
  const int64_t rows = ChunkRows(tokens);
  return (tokens + rows - 1) / rows;
}

HeadChunk HeadLogits::ChunkAt(const RowOrder& order, int64_t begin, int64_t rows) const {
  HeadChunk chunk{begin, rows, begin >= order.active, {}, {}};
  if (order.order.defined()) {
    chunk.tokens = order.order.narrow(0, begin, rows);
    chunk.hidden = head_.hidden.index_select(0, chunk.tokens);
  } else {
    chunk.hidden = head_.hidden.narrow(0, begin, rows);
  }
  return chunk;
}

void HeadLogits::ForEachChunk(const RowOrder& order, const std::function<void(const HeadChunk&)>& work) {
  const int64_t longest = std::min(std::max(ChunkRows(order.active), ChunkRows(order.inert())), order.tokens);
  try {
    // Rows start at 16 bytes whatever the vocabulary.
    buffer_ = at::empty({longest, RoundUp(shard_.count, kAlignedElements)}, head_.hidden.options());
    for (const auto& [first, end] :
         {std::pair<int64_t, int64_t>(0, order.active), std::pair(order.active, order.tokens)}) {
      const int64_t most = ChunkRows(end - first);
      for (int64_t begin = first; begin < end; begin += most) {
        CheckStop();
        work(ChunkAt(order, begin, std::min(most, end - begin)));
      }
    }
  } catch (const c10::OutOfMemoryError&) {
    throw MemoryError("chunk", fmt::format("the GPU's memory does not hold the logits of {} tokens", longest),
                      fmt::format("set chunk={} or less", std::max<int64_t>(longest / 2, 1)));
  }
  buffer_ = at::Tensor();  // the caller may need its memory next
}

LogitView HeadLogits::Logits(const at::Tensor& hidden, const at::Tensor& local_ids) {
  at::Tensor logits = buffer_.narrow(0, 0, hidden.size(0)).narrow(1, 0, shard_.count);
  ProductInto(logits, hidden, factor_.t(), bias_);
  return {logits, local_ids, shard_.count, options_.logits.temperature, options_.logits.softcap};
}

LogitView HeadLogits::Stats(const at::Tensor& hidden, const at::Tensor& local_ids, const TokenPass& pass,
                            const Unnormalised& unnormalised) {
  const LogitView view = Logits(hidden, local_ids);
  const at::Tensor support_logits = SupportLogits(hidden, local_ids, pass.policy.scalar_type());
  ComputeRowStats(view, support_logits, pass, unnormalised);
  if (parallel()) CombineRowStats(shard_, options_.logits, support_logits, pass);
  return view;
}

at::Tensor HeadLogits::SupportLogits(const at::Tensor& hidden, const at::Tensor& local_ids,
                                     at::ScalarType type) const {
  const at::Tensor out = at::empty(local_ids.sizes(), hidden.options().dtype(type));
  const SupportRows rows{hidden.const_data_ptr(),
                         weight_.const_data_ptr(),
                         bias_.defined() ? bias_.const_data_ptr() : nullptr,
                         ElementTypeOf(hidden),
                         hidden.size(0),
                         hidden.size(1),
                         local_ids.const_data_ptr<int32_t>(),
                         static_cast<int>(local_ids.size(1))};
  WithComputeType(type, [&]<typename T>(T) {
    Run(hidden, SupportLogitsCpu<T>, SupportLogitsCuda<T>, rows, out.mutable_data_ptr<T>());
  });
  return out;
}

}  // namespace augur
