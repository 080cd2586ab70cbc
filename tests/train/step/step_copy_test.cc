#include "train/step/step_copy.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include "base/process_group.h"
#include "model/load.h"

namespace augur {
namespace {

void Update(const Model& model, Optimizer& optimizer, BadUpdates& bad_updates, bool corrupt) {
  for (at::Tensor parameter : Parameters(model)) parameter.mutable_grad() = at::ones_like(parameter.detach());
  optimizer.Accumulate();
  if (corrupt) optimizer.CorruptGradient();
  bad_updates.Count(optimizer.Update(1e-3).skipped, 1);
}

class StepCopyOf : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Types, StepCopyOf, testing::Values(at::kFloat, at::kBFloat16));

TEST_P(StepCopyOf, PutsBackWeightsStatesAndCounts) {
  const Model model = LoadModel(AUGUR_SOURCE_DIR "/models/tiny", GetParam(), at::kCPU);
  Optimizer optimizer(model, {});
  BadUpdates bad_updates(10);
  StepCopy copy(optimizer, bad_updates);
  EXPECT_TRUE(copy.Restore());  // nothing was taken: nothing to do
  for (int step = 0; step < 2; ++step) {
    Update(model, optimizer, bad_updates, /*corrupt=*/false);
    Update(model, optimizer, bad_updates, /*corrupt=*/true);
    std::vector<at::Tensor> before;
    for (const at::Tensor& tensor : optimizer.StateTensors()) before.push_back(tensor.clone());
    for (const at::Tensor& tensor : Parameters(model)) before.push_back(tensor.detach().clone());
    const int64_t updates = optimizer.updates();
    copy.Forget();
    copy.Take();
    Update(model, optimizer, bad_updates, /*corrupt=*/true);
    EXPECT_EQ(bad_updates.in_row(), 2);
    Update(model, optimizer, bad_updates, /*corrupt=*/false);
    copy.Take();  // of the same step: the first one counts
    EXPECT_TRUE(copy.Restore());
    EXPECT_EQ(bad_updates.in_row(), 1);
    EXPECT_EQ(optimizer.updates(), updates);
    std::vector<at::Tensor> now = optimizer.StateTensors();
    for (const at::Tensor& tensor : Parameters(model)) now.push_back(tensor.detach());
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(now[i], before[i])) << i;
  }
}

TEST(StepCopy, IsRefusedWhereItDoesNotFitIntoThisProcesssShareOfHostMemory) {
  const Model model = LoadModel(AUGUR_SOURCE_DIR "/models/tiny", at::kFloat, at::kCPU);
  Optimizer optimizer(model, {});
  BadUpdates bad_updates(10);
  StepCopy copy(optimizer, bad_updates);
  ProcessGroup many;
  many.local_size = 1 << 20;
  SetProcessGroup(many);
  testing::internal::CaptureStderr();
  copy.Take();
  SetProcessGroup({});
  EXPECT_NE(testing::internal::GetCapturedStderr().find("are not free"), std::string::npos);
  EXPECT_FALSE(copy.Restore());
}

TEST(StepCopy, PinnedMemoryIsCountedAsTorchRoundsIt) {
  EXPECT_EQ(PinnedBytes(1 << 20), 1 << 20);
  EXPECT_EQ(PinnedBytes((1 << 20) + 1), 2 << 20);
}

}  // namespace
}  // namespace augur
