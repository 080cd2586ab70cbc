#include "ops/head/loss_outputs.h"

#include <ATen/ops/empty.h>

#include "kernels/head/surrogate.h"

namespace augur {

LossOutputs OutputsOf(const PolicyLoss& result) {
  LossOutputs out;
  out.loss = result.loss;
  out.logprobs = result.policy.sampled().contiguous();  // an output must not be a view of another
  out.entropy = result.policy.entropy;
  out.ratio = result.ratio;
  out.divergence = result.divergence;
  out.direction = result.direction;
  out.keep = result.keep;
  out.flags = result.flags;
  out.sums = result.sums;
  return out;
}

LossOutputs MetaOutputsOf(const at::Tensor& rows) {
  const auto type = rows.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto make = [&](c10::SymIntArrayRef shape, at::ScalarType dtype) {
    return at::empty_symint(shape, rows.options().dtype(dtype));
  };
  const auto token = [&](at::ScalarType dtype) { return make({rows.sym_size(0)}, dtype); };
  LossOutputs out;
  out.loss = make({}, type);
  for (at::Tensor* x : {&out.logprobs, &out.entropy, &out.ratio, &out.divergence, &out.direction}) {
    *x = token(type);
  }
  out.keep = token(at::kBool);
  out.flags = token(at::kByte);
  out.sums = make({c10::SymInt(kDecisionSums)}, at::kDouble);
  return out;
}

}  // namespace augur
