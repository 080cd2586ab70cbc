#include "analysis/decompose.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>

#include "rollout/small_model.h"
#include "train/step/random_samples.h"

namespace augur {
namespace {

// The loss of a token is its ratio, cut at ratio_cap, times a factor: so is its own gradient.
TEST(Decompose, ATokensOwnPartIsThatOfTheRatioAsItIsCut) {
  const Model model = SmallModel(SmallFamilies()[3]);
  Optimizer optimizer(model, {});
  const StateCopy before(model, optimizer);
  for (at::Tensor parameter : Parameters(model))
    parameter.mutable_grad() = at::randn_like(parameter.detach());
  optimizer.Accumulate();
  const at::Tensor gradient = FlattenByName(model, optimizer.gradients());
  const UpdateResult result = optimizer.Update(1e-3);
  const UpdateTerms terms = MakeUpdateTerms(before, optimizer, {}, gradient, result, 1e-3);
  before.Restore();
  Rollout rollout = RandomRollout(model.config.vocab_size, 4, 5, 1);
  rollout.support.logprobs[2 * 6] = -20;  // drawn as good as never: the ratio is far above any cap
  const TrainSample sample{.rollout = &rollout, .advantage = 2};
  const auto parts = [&](double cap, double weight) {
    StepLoss loss;
    loss.terms.rule.ratio_cap = cap;
    return DecomposeChange(model, loss, Proximity::kKl, {&sample, 2, weight}, terms);
  };
  const ChangeParts two = parts(2, 0.5), five = parts(5, 1.5);
  ASSERT_NE(two.own, 0);
  EXPECT_NEAR(five.own / two.own, 2.5 * 3, 1e-4);
  EXPECT_GT(parts(0, 1.5).own / five.own, 2);
  EXPECT_NEAR(five.own + five.others, two.own + two.others, 1e-6 * std::abs(five.own));
  EXPECT_EQ(five.momentum, two.momentum);
  EXPECT_EQ(five.weight_decay, two.weight_decay);
}

}  // namespace
}  // namespace augur
