#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ops/head/logits_policy_loss.h"

namespace augur {
namespace {

TEST(PolicyLoss, WithoutWeightsIsTheMeanOverTokensThatHaveASupport) {
  const at::Tensor logits = at::randn({4, 9}, at::kDouble);
  RecordedTokens recorded;
  recorded.support_ids = at::arange(8).reshape({4, 2}).to(at::kInt);
  recorded.support_logprobs = at::full({4, 2}, std::log(0.2), at::kDouble);
  recorded.advantages = at::tensor({1.0, -2.0, 3.0, 0.5}, at::kDouble);
  recorded.support_ids[2].fill_(-1);
  recorded.support_logprobs[2].fill_(-INFINITY);
  LossTerms terms;
  terms.rule = PresetRule("none");
  const PolicyLoss mean = PolicyLossForwardImpl(terms, logits, recorded, {}).result;
  const at::Tensor each = mean.ratio * recorded.advantages;
  EXPECT_NEAR(mean.loss.item<double>(), -(each[0] + each[1] + each[3]).item<double>() / 3, 1e-9);
  recorded.weights = at::tensor({1.0, 1.0, 1.0, 1.0}, at::kDouble) / 3;
  const PolicyLoss weighted = PolicyLossForwardImpl(terms, logits, recorded, {}).result;
  EXPECT_NEAR(mean.loss.item<double>(), weighted.loss.item<double>(), 1e-12);
}

}  // namespace
}  // namespace augur
