// The one pass behind linear_policy_loss, as a plain function; linear_policy_loss.cc binds it to autograd.
#pragma once

#include "ops/head/head.h"

namespace augur {

struct HeadPassResult {
  PolicyLoss loss;
  // Of the arguments' shapes and types; undefined where not wanted.
  at::Tensor hidden_gradient, weight_gradient, bias_gradient;
};

HeadPassResult RunHeadPass(const LossTerms& terms, const Head& head, const RecordedTokens& recorded,
                           const HeadOptions& options, const HeadWants& wants);

}  // namespace augur
