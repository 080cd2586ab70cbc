#include "analysis/state_copy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>

#include "analysis/decompose.h"
#include "analysis/full_support.h"
#include "model/load.h"

namespace augur {
namespace {

Model TinyModel(at::ScalarType type) { return LoadModel(AUGUR_SOURCE_DIR "/models/tiny", type, at::kCPU); }

// Some gradient for every parameter.
void AddGradients(const Model& model, Optimizer& optimizer) {
  for (at::Tensor parameter : Parameters(model))
    parameter.mutable_grad() = at::randn_like(parameter.detach());
  optimizer.Accumulate();
}

std::vector<at::Tensor> Values(const Model& model, const Optimizer& optimizer) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : Parameters(model)) values.push_back(parameter.detach().clone());
  for (const StateTensor& state : optimizer.State()) values.push_back(state.tensor.clone());
  return values;
}

class StateCopyOf : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Types, StateCopyOf, testing::Values(at::kFloat, at::kBFloat16));

TEST_P(StateCopyOf, PutsParametersAndOptimizerBackBitForBit) {
  const Model model = TinyModel(GetParam());
  Optimizer optimizer(model, {});
  AddGradients(model, optimizer);
  optimizer.Update(1e-3);
  const StateCopy copy(model, optimizer);
  const std::vector<at::Tensor> before = Values(model, optimizer);
  for (int round = 0; round < 2; ++round) {
    AddGradients(model, optimizer);
    optimizer.Update(1e-3);
    EXPECT_FALSE(at::equal(Values(model, optimizer).back(), before.back()));
    copy.Restore();
    const std::vector<at::Tensor> now = Values(model, optimizer);
    for (size_t i = 0; i < now.size(); ++i) EXPECT_TRUE(at::equal(now[i], before[i])) << i;
    EXPECT_EQ(optimizer.updates(), 1);
  }
}

TEST(Decompose, TheTermsOfAnUpdateAddUpToTheUpdate) {
  const Model model = TinyModel(at::kFloat);
  const OptimizerOptions options{.weight_decay = 0.1, .clip = 1.0};
  Optimizer optimizer(model, options);
  AddGradients(model, optimizer);
  optimizer.Update(1e-3);
  const StateCopy before(model, optimizer);
  const at::Tensor start = FlattenByName(model, Parameters(model));
  AddGradients(model, optimizer);
  const at::Tensor gradient = FlattenByName(model, optimizer.gradients());
  const UpdateResult result = optimizer.Update(1e-3);
  const UpdateTerms terms = MakeUpdateTerms(before, optimizer, options, gradient, result, 1e-3);
  const at::NoGradGuard no_grad;
  const at::Tensor change = FlattenByName(model, Parameters(model)) - start;
  // The difference of two parameters carries their rounding, two units in the last place.
  const at::Tensor rounding = start.abs() * 2.4e-7 + change.abs() * 1e-4 + 1e-8;
  EXPECT_LT(((terms.Update() - change).abs() / rounding).max().item<double>(), 1);
  EXPECT_GT(change.abs().max().item<double>(), 1e-4);
  EXPECT_GT(terms.MomentumCosine(), 0);
}

TEST(FullSupport, IsCutToWhatRecordingTheTopKWouldHaveGiven) {
  // Token 5 sampled with probability 0.2, behind 3 (0.4); then 1 (0.15) and 0 (0.1).
  const auto log = [](float p) { return std::log(p); };
  const RecordedSupport whole{4, {5, 3, 1, 0}, {log(0.2f), log(0.4f), log(0.15f), log(0.1f)}};
  const RecordedSupport two = KeepTopK(whole, 2);
  EXPECT_EQ(two.columns, 3);
  EXPECT_EQ(two.ids, (std::vector<int32_t>{5, 3, -1}));  // 5 is itself among the two
  const RecordedSupport one = KeepTopK(whole, 1);
  EXPECT_EQ(one.ids, (std::vector<int32_t>{5, 3}));  // and not the most likely one
  EXPECT_TRUE(std::isinf(two.logprobs[2]));
}

}  // namespace
}  // namespace augur
