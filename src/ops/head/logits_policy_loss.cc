#include "ops/head/logits_policy_loss.h"

#include <ATen/ops/empty_like.h>

#include "base/error.h"
#include "ops/head/outside_budget.h"
#include "ops/head/token_pass.h"
#include "ops/launch.h"

namespace augur {
namespace {

// The logits as a kernel reads them: dense, and on the CPU never half, which has no kernel there.
at::Tensor ReadableLogits(const at::Tensor& logits) {
  const at::Tensor detached = logits.detach();
  const bool widen = detached.is_cpu() && detached.scalar_type() == at::kHalf;
  return (widen ? detached.to(at::kFloat) : detached).contiguous();
}

int64_t CheckedVocabSize(const LogitOptions& options, int64_t columns) {
  if (options.vocab_size < 0 || options.vocab_size > columns) {
    throw Error("vocab_size",
                fmt::format("is {}, but the logits have {} columns", options.vocab_size, columns),
                "pass the real vocabulary size, or 0 for all columns");
  }
  return options.vocab_size == 0 ? columns : options.vocab_size;
}

}  // namespace

PolicyLossForward PolicyLossForwardImpl(const LossTerms& terms, const at::Tensor& logits,
                                        const RecordedTokens& recorded, const LogitOptions& options) {
  CheckRows({"logits", logits}, "[T, V]");
  CheckLogitOptions(options);
  const int64_t vocab_size = CheckedVocabSize(options, logits.size(1));
  CheckRuleOfLoss(terms.rule);
  CheckRecordedTokens({"logits", logits}, recorded, terms, vocab_size, options.validate);
  const TokenPass pass = StartTokenPass(recorded, ComputeType(logits));
  const LogitView view{ReadableLogits(logits), pass.support, vocab_size, options.temperature,
                       options.softcap};
  ComputeRowStats(view, at::Tensor(), pass);
  DecideTokens(terms, vocab_size, pass);
  if (terms.rule.outside_budget > 0) {
    DecideTokens(WithBudgetSpent(terms, pass.divergence, pass.flags, pass.weights), vocab_size, pass);
  }
  return {FinishTokenPass(terms, pass),
          {pass.log_sum_exp, pass.entropy, pass.dense, pass.entropy_weight, pass.support}};
}

at::Tensor PolicyLossBackwardImpl(const at::Tensor& grad_loss, const at::Tensor& logits,
                                  const SavedRows& saved, const LogitOptions& options) {
  const at::Tensor readable = ReadableLogits(logits);
  TokenPass pass;
  pass.support = saved.support;
  pass.log_sum_exp = saved.log_sum_exp;
  pass.entropy = saved.entropy;
  pass.dense = saved.dense;
  pass.entropy_weight = saved.entropy_weight;
  GradientTarget target;
  target.gradient = at::empty_like(readable);
  target.scale = grad_loss.to(saved.log_sum_exp.scalar_type()).contiguous();
  const int64_t vocab_size = options.vocab_size == 0 ? logits.size(1) : options.vocab_size;
  ComputeRowGradient({readable, saved.support, vocab_size, options.temperature, options.softcap}, pass,
                     target);
  return target.gradient.to(logits.scalar_type());
}

}  // namespace augur
