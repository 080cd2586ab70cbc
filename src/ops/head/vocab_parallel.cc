#include "ops/head/vocab_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "ops/parallel/collectives.h"

namespace augur {

at::Tensor LocalSupport(const at::Tensor& support, const VocabShard& shard) {
  const at::Tensor owned = support.ge(shard.start).logical_and(support.lt(shard.start + shard.count));
  return at::where(owned, support - shard.start, -1).to(at::kInt).contiguous();
}

// With L a rank's log-sum-exp, m the largest of them and e = exp(L - m), the whole vocabulary's sums are
// those of e times the rank's own.
void CombineRowStats(const VocabShard& shard, const LogitOptions& options, const at::Tensor& support_logits,
                     const TokenPass& pass) {
  const at::Tensor max = AllReduce(pass.log_sum_exp, "max", shard.group);
  const at::Tensor shift = pass.log_sum_exp - max;
  const at::Tensor share = shift.exp();
  // A rank without any mass has neither an entropy nor a finite shift.
  const auto weighed = [&](const at::Tensor& x) { return at::where(share.eq(0), at::zeros_like(x), x); };
  const at::Tensor mine =
      at::stack({share, weighed(share * (shift - pass.entropy)), weighed(share * pass.tail_mass),
                 weighed(share * share * pass.tail_square)},
                1);
  const at::Tensor sums = AllReduce(at::cat({mine, support_logits}, 1), "sum", shard.group);
  const at::Tensor total = sums.select(1, 0);
  const at::Tensor log_total = total.log();
  pass.log_sum_exp.copy_(max + log_total);
  pass.entropy.copy_(log_total - sums.select(1, 1) / total);
  pass.tail_mass.copy_(sums.select(1, 2) / total);
  pass.tail_square.copy_(sums.select(1, 3) / (total * total));

  at::Tensor logits = sums.narrow(1, 4, support_logits.size(1));
  if (options.softcap > 0) logits = (logits / options.softcap).tanh() * options.softcap;
  const at::Tensor logprobs = logits / options.temperature - pass.log_sum_exp.unsqueeze(1);
  pass.policy.copy_(at::where(pass.support.ge(0), logprobs, -std::numeric_limits<double>::infinity()));
}

}  // namespace augur
