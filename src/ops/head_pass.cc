#include "ops/head_pass.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/stop_signals.h"
#include "kernels/head/live_rows.h"
#include "kernels/head/support_logits.h"
#include "ops/collectives.h"
#include "ops/head_gradients.h"
#include "ops/launch.h"
#include "ops/outside_budget.h"
#include "ops/token_pass.h"
#include "ops/vocab_parallel.h"

namespace augur {
namespace {

constexpr int64_t kCudaChunkBytes = int64_t{1228} << 20;
constexpr int64_t kCpuChunkBytes = int64_t{96} << 20;
constexpr int64_t kRowMultiple = 128;    // GEMM tiles
constexpr int64_t kAlignedElements = 8;  // 16 bytes of bf16: GEMMs and sweeps need rows that start so

int64_t RoundUp(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// Chunks of nearly equal size whose logits fit the budget.
int64_t ChunkRows(int64_t tokens, int64_t vocab, const at::Tensor& hidden, int64_t wanted) {
  if (wanted > 0) return std::min(wanted, std::max<int64_t>(tokens, 1));
  const int64_t budget = hidden.is_cuda() ? kCudaChunkBytes : kCpuChunkBytes;
  const int64_t row_bytes = std::max<int64_t>(vocab, 1) * hidden.element_size();
  const int64_t most = std::max(budget / row_bytes / kRowMultiple * kRowMultiple, kRowMultiple);
  const int64_t chunks = std::max<int64_t>((tokens + most - 1) / most, 1);
  return std::clamp<int64_t>(RoundUp((tokens + chunks - 1) / chunks, kRowMultiple), 1,
                             std::max<int64_t>(tokens, 1));
}

int64_t CheckedHeadVocabSize(const Head& head, const HeadOptions& options) {
  const int64_t rows = head.weight.size(0), size = options.loss.vocab_size;
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

int64_t CheckArguments(const Head& head, const RecordedTokens& recorded, const HeadOptions& options) {
  CheckShape({"hidden", head.hidden}, {-1, -1});
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
  CheckLossOptions(options.loss);
  const int64_t vocab_size = CheckedHeadVocabSize(head, options);
  CheckRecordedTokens({"hidden", head.hidden}, recorded, options.loss, vocab_size);
  return vocab_size;
}

// Tokens without a gradient whatever the policy decides: of no weight, without record, or, where nothing else
// is asked of them, without advantage.
at::Tensor InertTokens(const TokenPass& pass, const LossOptions& options) {
  at::Tensor inert = pass.weights.eq(0).logical_or_(pass.behaviour.select(1, 0).eq(-INFINITY));
  if (options.entropy_bonus == 0 && options.reference_kl == ReferenceKl::kNone) {
    inert.logical_or_(pass.advantages.eq(0));
  }
  return inert;
}

// The chunk loop. Its members are what one chunk after the other uses.
class HeadPass {
 public:
  HeadPass(const MaskRule& rule, const Head& head, const RecordedTokens& recorded, const HeadOptions& options,
           const HeadWants& wants, int64_t vocab_size)
      : rule_(rule), head_(head), options_(options), wants_(wants), vocab_size_(vocab_size) {
    const int64_t held = std::clamp<int64_t>(vocab_size - options.vocab_start, 0, head.weight.size(0));
    shard_ = {options.group, options.vocab_start, held};
    weight_ = head.weight.narrow(0, 0, held);
    if (head.bias.defined()) bias_ = head.bias.narrow(0, 0, held);
    pass_ = StartTokenPass(recorded, ComputeType(head.hidden));
    active_ = wants.any() ? PutInertTokensLast() : 0;
    local_support_ = Parallel() ? LocalSupport(pass_.support, shard_) : pass_.support;
    chunk_rows_ = std::max(ChunkRows(active_, held, head.hidden, options.chunk),
                           ChunkRows(pass_.tokens() - active_, held, head.hidden, options.chunk));
    if (options.grad_scale != 1) scale_ = at::full({}, options.grad_scale, pass_.policy.options());
  }

  // The most tokens of a chunk.
  int64_t chunk_rows() const { return chunk_rows_; }

  HeadPassResult Run() {
    HeadPassResult result;
    const int64_t tokens = pass_.tokens();
    const int64_t rows = ChunkRows(active_, shard_.count, head_.hidden, options_.chunk);
    HeadGradients gradients(head_, weight_, wants_, options_.accumulate_float32, (active_ + rows - 1) / rows);
    // Rows start at 16 bytes whatever the vocabulary.
    buffer_ = at::empty({std::min(chunk_rows_, tokens), RoundUp(shard_.count, kAlignedElements)},
                        head_.hidden.options());
    ForEachChunk(0, active_, [&](const Chunk& chunk) {
      if (!(UsesPowers() && AddGradientsFromPowers(chunk, &gradients))) AddGradients(chunk, &gradients);
    });
    ForEachChunk(active_, tokens, [&](const Chunk& chunk) { Decide(chunk); });
    buffer_ = at::Tensor();  // before the float32 sum is rounded into a tensor of its own
    gradients.Finish(&result);
    if (Parallel() && wants_.hidden) {
      result.hidden_gradient = AllReduce(result.hidden_gradient, "sum", shard_.group);
    }
    result.loss = FinishTokenPass(rule_, options_.loss, vocab_size_, pass_);
    if (order_.defined()) PutInOrder(&result.loss);
    return result;
  }

 private:
  struct Chunk {
    int64_t begin;
    TokenPass pass;
    at::Tensor hidden;  // [rows, d]
    at::Tensor tokens;  // [rows] int64, which of the batch these are; undefined for all from `begin` on
  };

  bool Parallel() const { return !shard_.group.empty(); }

  // Whether the gradient can be had in one sweep; see UnnormalisedGradient.
  bool UsesPowers() const {
    return !Parallel() && options_.loss.softcap == 0 && options_.loss.entropy_bonus == 0 &&
           head_.hidden.scalar_type() != at::kHalf;
  }

  // So that chunks are of one kind, with gradients or without. Returns how many tokens are not inert.
  int64_t PutInertTokensLast() {
    const at::Tensor inert = InertTokens(pass_, options_.loss);
    const int64_t count = inert.sum().item<int64_t>(), tokens = pass_.tokens();
    if (count == 0 || count == tokens) return tokens - count;
    order_ = at::argsort(inert.to(at::kByte), /*stable=*/true, 0, false);
    for (at::Tensor* x :
         {&pass_.support, &pass_.behaviour, &pass_.advantages, &pass_.weights, &pass_.reference}) {
      if (x->defined()) *x = x->index_select(0, order_);
    }
    return tokens - count;
  }

  void PutInOrder(PolicyLoss* loss) const {
    for (at::Tensor* x : {&loss->logprobs, &loss->entropy, &loss->ratio, &loss->divergence, &loss->direction,
                          &loss->flags, &loss->keep}) {
      *x = at::empty_like(*x).index_copy_(0, order_, *x);
    }
  }

  template <typename F>
  void ForEachChunk(int64_t begin, int64_t end, F f) const {
    const int64_t most = ChunkRows(end - begin, shard_.count, head_.hidden, options_.chunk);
    for (; begin < end; begin += most) {
      CheckStop();
      const int64_t rows = std::min(most, end - begin);
      Chunk chunk{begin, pass_.Slice(begin, rows), {}, {}};
      if (order_.defined()) {
        chunk.tokens = order_.narrow(0, begin, rows);
        chunk.hidden = head_.hidden.index_select(0, chunk.tokens);
      } else {
        chunk.hidden = head_.hidden.narrow(0, begin, rows);
      }
      f(chunk);
    }
  }

  // The chunk's logits, statistics and decisions. With `powers` the logits become powers.
  LogitView Decide(const Chunk& chunk, const PowersOf& powers = {}) {
    const int64_t rows = chunk.pass.tokens();
    at::Tensor logits = buffer_.narrow(0, 0, rows).narrow(1, 0, shard_.count);
    if (bias_.defined()) {
      at::addmm_out(logits, bias_, chunk.hidden, weight_.t());
    } else {
      at::mm_out(logits, chunk.hidden, weight_.t());
    }
    const LogitView view{logits, local_support_.narrow(0, chunk.begin, rows), shard_.count,
                         options_.loss.temperature, options_.loss.softcap};
    const at::Tensor support_logits = SupportLogits(chunk.hidden, view.support);
    ComputeRowStats(view, support_logits, chunk.pass, powers);
    if (Parallel()) CombineRowStats(shard_, options_.loss, support_logits, chunk.pass);
    DecideTokens(rule_, options_.loss, vocab_size_, chunk.pass);
    return view;
  }

  at::Tensor SupportLogits(const at::Tensor& hidden, const at::Tensor& support) const {
    const at::Tensor out = at::empty(support.sizes(), pass_.policy.options());
    const SupportRows rows{hidden.const_data_ptr(),
                           weight_.const_data_ptr(),
                           bias_.defined() ? bias_.const_data_ptr() : nullptr,
                           ElementTypeOf(hidden),
                           hidden.size(0),
                           hidden.size(1),
                           support.const_data_ptr<int32_t>(),
                           static_cast<int>(support.size(1))};
    WithComputeType(out.scalar_type(), [&]<typename T>(T) {
      augur::Run(hidden, SupportLogitsCpu<T>, SupportLogitsCuda<T>, rows, out.mutable_data_ptr<T>());
    });
    return out;
  }

  // The rows of the chunk that have a gradient; see LiveRows. On CUDA this waits for the chunk's decisions.
  at::Tensor LiveRows(const TokenPass& chunk) const {
    const auto ints = chunk.support.options();
    const at::Tensor source = at::empty({chunk.tokens()}, ints), count = at::empty({1}, ints);
    WithComputeType(chunk.dense.scalar_type(), [&]<typename T>(T) {
      const LiveRowsInput<T> in{chunk.dense.const_data_ptr<T>(), chunk.entropy_weight.const_data_ptr<T>(),
                                chunk.sparse.const_data_ptr<T>(), chunk.tokens(),
                                static_cast<int>(chunk.support.size(1))};
      augur::Run(chunk.dense, LiveRowsCpu<T>, LiveRowsCuda<T>, in, source.mutable_data_ptr<int32_t>(),
                 count.mutable_data_ptr<int32_t>());
    });
    return source.narrow(0, 0, count.item<int32_t>());
  }

  // Where the gradients of the chunk's live rows go: over their logits.
  GradientTarget TargetOf(const LogitView& view, const Chunk& chunk) const {
    const at::Tensor live = LiveRows(chunk.pass);
    GradientTarget target;
    target.gradient = view.logits.narrow(0, 0, live.size(0));
    target.scale = scale_;
    if (live.size(0) < chunk.pass.tokens()) target.source = live;
    target.precise_support = true;
    return target;
  }

  void AddGradients(const Chunk& chunk, HeadGradients* gradients) {
    const LogitView view = Decide(chunk);
    const GradientTarget target = TargetOf(view, chunk);
    if (target.gradient.numel() == 0) return;
    ComputeRowGradient(view, chunk.pass, target);
    gradients->Add(RowsOf(chunk, target, at::Tensor()));
  }

  // False where some row does not fit into powers, and nothing has been added.
  bool AddGradientsFromPowers(const Chunk& chunk, HeadGradients* gradients) {
    const auto ints = chunk.pass.support.options();
    const PowersOf powers{at::empty_like(chunk.pass.dense), at::zeros({1}, ints)};
    const LogitView view = Decide(chunk, powers);
    const GradientTarget target = TargetOf(view, chunk);
    if (powers.overflowed.item<int32_t>() != 0) return false;
    if (target.gradient.numel() == 0) return true;
    gradients->Add(RowsOf(chunk, target, ComputeUnnormalisedGradient(view, chunk.pass, powers, target)));
    return true;
  }

  GradientRows RowsOf(const Chunk& chunk, const GradientTarget& target, const at::Tensor& factor) const {
    GradientRows rows{target.gradient, factor, chunk.hidden, chunk.tokens, chunk.begin};
    if (!target.source.defined()) return rows;
    rows.hidden = chunk.hidden.index_select(0, target.source);
    rows.tokens = chunk.tokens.defined() ? chunk.tokens.index_select(0, target.source)
                                         : target.source.to(at::kLong).add_(chunk.begin);
    return rows;
  }

  const MaskRule& rule_;
  const Head& head_;
  const HeadOptions& options_;
  const HeadWants wants_;
  const int64_t vocab_size_;
  VocabShard shard_;
  at::Tensor weight_, bias_;  // without padding
  TokenPass pass_;            // in the order of `order_`
  at::Tensor order_;          // [T] int64, tokens with gradients first; undefined where all keep their places
  int64_t active_ = 0;        // how many tokens may have a gradient
  at::Tensor local_support_;  // [T, M] int32
  int64_t chunk_rows_ = 0;
  at::Tensor scale_;   // scalar or undefined
  at::Tensor buffer_;  // [chunk, at least V] logits, then their gradient
};

// Dense and of a type that the device's kernels read: half has none on the CPU.
Head Readable(const Head& head) {
  const bool widen = head.hidden.is_cpu() && head.hidden.scalar_type() == at::kHalf;
  const auto readable = [&](const at::Tensor& x) {
    if (!x.defined()) return x;
    return (widen ? x.detach().to(at::kFloat) : x.detach()).contiguous();
  };
  return {readable(head.hidden), readable(head.weight), readable(head.bias)};
}

}  // namespace

HeadPassResult RunHeadPass(const MaskRule& rule, const Head& head, const RecordedTokens& recorded,
                           const HeadOptions& options, const HeadWants& wants) {
  if (rule.outside_budget > 0) {  // decided once to find delta, and again under it
    MaskRule first = rule;
    first.outside_budget = 0;
    const PolicyLoss seen = RunHeadPass(first, head, recorded, options, {}).loss;
    const MaskRule spent = WithBudgetSpent(rule, seen.divergence, seen.flags, recorded.weights);
    return RunHeadPass(spent, head, recorded, options, wants);
  }
  const int64_t vocab_size = CheckArguments(head, recorded, options);
  const Head readable = Readable(head);
  HeadPass pass(rule, readable, recorded, options, wants, vocab_size);
  HeadPassResult result;
  try {
    result = pass.Run();
  } catch (const c10::OutOfMemoryError&) {
    throw MemoryError(
        "chunk", fmt::format("the GPU's memory does not hold the logits of {} tokens", pass.chunk_rows()),
        fmt::format("set chunk={} or less", std::max<int64_t>(pass.chunk_rows() / 2, 1)));
  }
  for (at::Tensor* gradient : {&result.hidden_gradient, &result.weight_gradient, &result.bias_gradient}) {
    if (gradient->defined()) *gradient = gradient->to(head.hidden.scalar_type());
  }
  return result;
}

}  // namespace augur
