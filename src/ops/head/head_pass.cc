#include "ops/head/head_pass.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "kernels/head/live_rows.h"
#include "ops/head/head_gradients.h"
#include "ops/head/head_logits.h"
#include "ops/head/outside_budget.h"
#include "ops/launch.h"
#include "ops/parallel/collectives.h"

namespace augur {
namespace {

// What one chunk after the other uses.
class HeadPass {
 public:
  HeadPass(const LossTerms& terms, const Head& head, const RecordedTokens& recorded,
           const HeadOptions& options, const HeadWants& wants, int64_t vocab_size)
      : terms_(terms),
        head_(head),
        options_(options),
        wants_(wants),
        vocab_size_(vocab_size),
        order_(wants.any() ? InertTokens(recorded, terms) : at::Tensor(), head.hidden.size(0)),
        logits_(head, options, vocab_size),
        pass_(StartTokenPass(recorded, ComputeType(head.hidden))) {
    for (at::Tensor* x :
         {&pass_.support, &pass_.behaviour, &pass_.advantages, &pass_.weights, &pass_.reference}) {
      *x = order_.Sorted(*x);
    }
    local_ids_ = logits_.LocalIds(pass_.support);
    if (options.grad_scale != 1) scale_ = at::full({}, options.grad_scale, pass_.policy.options());
  }

  HeadPassResult Run() {
    HeadPassResult result;
    HeadGradients gradients(head_, logits_.factor(), wants_, options_.accumulate_float32,
                            logits_.Chunks(order_.active));
    logits_.ForEachChunk(order_, [&](const HeadChunk& part) {
      const Chunk chunk{part, pass_.Slice(part.begin, part.rows)};
      if (chunk.inert || !wants_.any()) {
        Decide(chunk);
      } else if (!(UsesUnnormalised() && AddGradientsFromUnnormalised(chunk, &gradients))) {
        AddGradients(chunk, &gradients);
      }
    });
    gradients.Finish(&result);
    if (logits_.parallel() && wants_.hidden) {
      result.hidden_gradient = AllReduce(result.hidden_gradient, "sum", options_.group);
    }
    result.loss = FinishTokenPass(terms_, pass_);
    PutInOrder(&result.loss);
    return result;
  }

 private:
  struct Chunk : HeadChunk {
    TokenPass pass;
  };

  // Whether the gradient can be had in one sweep; see UnnormalisedGradient.
  bool UsesUnnormalised() const {
    return !logits_.parallel() && options_.logits.softcap == 0 && terms_.entropy_bonus == 0 &&
           head_.hidden.scalar_type() != at::kHalf;
  }

  void PutInOrder(PolicyLoss* loss) const {
    LogProbs& policy = loss->policy;
    for (at::Tensor* x : {&policy.support, &policy.tail_mass, &policy.tail_square, &policy.entropy,
                          &loss->ratio, &loss->divergence, &loss->direction, &loss->flags, &loss->keep}) {
      *x = order_.Restored(*x);
    }
  }

  // The chunk's logits, statistics and decisions. With `unnormalised` the logits become unnormalised
  // probabilities.
  LogitView Decide(const Chunk& chunk, const Unnormalised& unnormalised = {}) {
    const LogitView view =
        logits_.Stats(chunk.hidden, local_ids_.narrow(0, chunk.begin, chunk.rows), chunk.pass, unnormalised);
    DecideTokens(terms_, vocab_size_, chunk.pass);
    return view;
  }

  // The rows of the chunk that have a gradient; see LiveRows. On CUDA this waits for the chunk's decisions.
  at::Tensor LiveRows(const TokenPass& chunk) const {
    const auto ints = chunk.support.options();
    const at::Tensor source = at::empty({chunk.tokens()}, ints), count = at::empty({1}, ints);
    WithComputeType(chunk.dense.scalar_type(), [&]<typename T>(T) {
      const LiveRowsInput<T> in{chunk.dense.const_data_ptr<T>(), chunk.entropy_weight.const_data_ptr<T>(),
                                chunk.tokens()};
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

  // False where some row does not fit into unnormalised probabilities, and nothing has been added.
  bool AddGradientsFromUnnormalised(const Chunk& chunk, HeadGradients* gradients) {
    const auto ints = chunk.pass.support.options();
    const Unnormalised unnormalised{at::empty_like(chunk.pass.dense), at::zeros({1}, ints)};
    const LogitView view = Decide(chunk, unnormalised);
    const GradientTarget target = TargetOf(view, chunk);
    if (unnormalised.overflowed.item<int32_t>() != 0) return false;
    if (target.gradient.numel() == 0) return true;
    gradients->Add(
        RowsOf(chunk, target, ComputeUnnormalisedGradient(view, chunk.pass, unnormalised, target)));
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

  const LossTerms& terms_;
  const Head& head_;
  const HeadOptions& options_;
  const HeadWants wants_;
  const int64_t vocab_size_;
  const RowOrder order_;
  HeadLogits logits_;
  TokenPass pass_;        // in the order of `order_`
  at::Tensor local_ids_;  // [T, M] int32, the support's within the head's rows
  at::Tensor scale_;      // scalar or undefined
};

}  // namespace

HeadPassResult RunHeadPass(const LossTerms& terms, const Head& head, const RecordedTokens& recorded,
                           const HeadOptions& options, const HeadWants& wants) {
  if (terms.rule.outside_budget > 0) {  // decided once to find delta, and again under it
    LossTerms first = terms;
    first.rule.outside_budget = 0;
    const PolicyLoss seen = RunHeadPass(first, head, recorded, options, {}).loss;
    const LossTerms spent = WithBudgetSpent(terms, seen.divergence, seen.flags, recorded.weights);
    return RunHeadPass(spent, head, recorded, options, wants);
  }
  CheckRuleOfLoss(terms.rule);
  const int64_t vocab_size = CheckHead(head, options);
  CheckRecordedTokens({"hidden", head.hidden}, recorded, terms, vocab_size, options.logits.validate);
  const Head readable = ReadableHead(head);
  HeadPassResult result = HeadPass(terms, readable, recorded, options, wants, vocab_size).Run();
  for (at::Tensor* gradient : {&result.hidden_gradient, &result.weight_gradient, &result.bias_gradient}) {
    if (gradient->defined()) *gradient = gradient->to(head.hidden.scalar_type());
  }
  return result;
}

}  // namespace augur
