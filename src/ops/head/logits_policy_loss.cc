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

int64_t CheckedVocabSize(const LossOptions& options, int64_t columns) {
  if (options.vocab_size < 0 || options.vocab_size > columns) {
    throw Error("vocab_size",
                fmt::format("is {}, but the logits have {} columns", options.vocab_size, columns),
                "pass the real vocabulary size, or 0 for all columns");
  }
  return options.vocab_size == 0 ? columns : options.vocab_size;
}

}  // namespace

PolicyLossForward PolicyLossForwardImpl(const MaskRule& rule, const at::Tensor& logits,
                                        const RecordedTokens& recorded, const LossOptions& options) {
  CheckRows({"logits", logits}, "[T, V]");
  CheckLossOptions(options);
  const int64_t vocab_size = CheckedVocabSize(options, logits.size(1));
  CheckRecordedTokens({"logits", logits}, recorded, options, vocab_size);
  const TokenPass pass = StartTokenPass(recorded, ComputeType(logits));
  const LogitView view{ReadableLogits(logits), pass.support, vocab_size, options.temperature,
                       options.softcap};
  ComputeRowStats(view, at::Tensor(), pass);
  DecideTokens(rule, options, vocab_size, pass);
  if (rule.outside_budget > 0) {
    DecideTokens(WithBudgetSpent(rule, pass.divergence, pass.flags, pass.weights), options, vocab_size, pass);
  }
  return {FinishTokenPass(rule, options, pass),
          pass.log_sum_exp,
          pass.dense,
          pass.entropy_weight,
          pass.sparse,
          pass.support};
}

at::Tensor PolicyLossBackwardImpl(const at::Tensor& grad_loss, const at::Tensor& logits,
                                  const at::Tensor& support, const at::Tensor& log_sum_exp,
                                  const at::Tensor& entropy, const at::Tensor& dense,
                                  const at::Tensor& entropy_weight, const at::Tensor& sparse,
                                  double temperature, int64_t vocab_size, double softcap) {
  const at::Tensor readable = ReadableLogits(logits);
  TokenPass pass;
  pass.support = support;
  pass.log_sum_exp = log_sum_exp;
  pass.entropy = entropy;
  pass.dense = dense;
  pass.entropy_weight = entropy_weight;
  pass.sparse = sparse;
  GradientTarget target;
  target.gradient = at::empty_like(readable);
  target.scale = grad_loss.to(log_sum_exp.scalar_type()).contiguous();
  ComputeRowGradient({readable, support, vocab_size == 0 ? logits.size(1) : vocab_size, temperature, softcap},
                     pass, target);
  return target.gradient.to(logits.scalar_type());
}

}  // namespace augur
