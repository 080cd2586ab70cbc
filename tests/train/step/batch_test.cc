#include "train/step/batch.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

namespace augur {
namespace {

TEST(MinibatchSizes, AreNearEqualAndNoneIsARemainder) {
  EXPECT_EQ(MinibatchSizes(49, 16), (std::vector<size_t>{13, 12, 12, 12}));
  EXPECT_EQ(MinibatchSizes(64, 16), (std::vector<size_t>{16, 16, 16, 16}));
  EXPECT_EQ(MinibatchSizes(17, 16), (std::vector<size_t>{9, 8}));
  EXPECT_EQ(MinibatchSizes(3, 16), (std::vector<size_t>{3}));
  EXPECT_TRUE(MinibatchSizes(0, 16).empty());
  for (size_t groups = 1; groups < 200; ++groups) {
    for (const size_t most : {1, 7, 16, 64}) {
      const std::vector<size_t> sizes = MinibatchSizes(groups, most);
      EXPECT_EQ(sizes.size(), (groups + most - 1) / most);
      EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), size_t{0}), groups);
      EXPECT_LE(sizes.front(), most);
      EXPECT_LE(sizes.front() - sizes.back(), 1u);
    }
  }
}

Rollout MakeRollout(std::vector<int32_t> prompt, std::vector<int32_t> response) {
  Rollout rollout;
  rollout.prompt_tokens = std::move(prompt);
  rollout.tokens = std::move(response);
  rollout.support.columns = 1;
  rollout.support.ids = rollout.tokens;
  rollout.support.logprobs.assign(rollout.tokens.size(), -1);
  return rollout;
}

std::vector<int64_t> Values(const at::Tensor& tensor) {
  const int64_t* data = tensor.const_data_ptr<int64_t>();
  return {data, data + tensor.numel()};
}

TEST(MakeMicroBatch, PacksPromptsOnceThatSeveralResponsesHave) {
  const std::vector<int32_t> prompt = {10, 11, 12};
  const Rollout rollouts[] = {MakeRollout(prompt, {20, 21}), MakeRollout({10, 11}, {30}),
                              MakeRollout(prompt, {40, 41, 42})};
  std::vector<TrainSample> samples;
  for (const Rollout& rollout : rollouts) samples.push_back({.rollout = &rollout});
  const std::vector<float> weights(6, 1);
  const MicroBatch shared = MakeMicroBatch(samples, weights, /*share_prompts=*/true, at::kCPU);
  using List = std::vector<int64_t>;
  EXPECT_EQ(Values(shared.packed.tokens), (List{10, 11, 12, 20, 10, 11, 12, 40, 41}));
  EXPECT_EQ(Values(shared.packed.rows), (List{2, 3, 5, 6, 7, 8}));
  EXPECT_EQ(Values(shared.packed.shared.sources), (List{0, 1, 2, 3, 4, 5, 0, 1, 6, 7, 8}));
  EXPECT_EQ(Values(shared.targets), (List{20, 21, 30, 40, 41, 42}));
  const MicroBatch apart = MakeMicroBatch(samples, weights, /*share_prompts=*/false, at::kCPU);
  EXPECT_EQ(Values(apart.packed.tokens), (List{10, 11, 12, 20, 10, 11, 10, 11, 12, 40, 41}));
  EXPECT_EQ(Values(apart.packed.rows), (List{2, 3, 5, 8, 9, 10}));
  EXPECT_TRUE(apart.packed.shared.empty());
}

TEST(MakeMicroBatch, LeavesPromptsThatAreShortForTheirResponses) {
  const Rollout rollout = MakeRollout({1, 2, 3}, std::vector<int32_t>(40, 4));
  const std::vector<TrainSample> samples(2, {.rollout = &rollout});
  const std::vector<float> weights(80, 1);
  EXPECT_TRUE(MakeMicroBatch(samples, weights, true, at::kCPU).packed.shared.empty());
}

}  // namespace
}  // namespace augur
