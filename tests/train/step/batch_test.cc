#include "train/step/batch.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"

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

TEST(MakeMicroBatch, LearnsFromSampledSpansAlone) {
  Rollout rollout = MakeRollout({1, 2}, {3, 4, 50, 51, 5});
  rollout.spans = {{0, 2, true, 0}, {2, 4, false, 0}, {4, 5, true, 0}};
  rollout.support.ids = {3, 4, 5};
  rollout.support.logprobs = {-1, -2, -3};
  const std::vector<TrainSample> samples = {{.rollout = &rollout, .advantage = 1}};
  const MicroBatch batch = MakeMicroBatch(samples, std::vector<float>(3, 1), false, at::kCPU);
  using List = std::vector<int64_t>;
  EXPECT_EQ(samples[0].tokens(), 3);
  EXPECT_EQ(Values(batch.packed.tokens), (List{1, 2, 3, 4, 50, 51}));
  EXPECT_EQ(Values(batch.packed.rows), (List{1, 2, 5}));
  EXPECT_EQ(Values(batch.targets), (List{3, 4, 5}));
  EXPECT_EQ(batch.recorded.support_ids.size(0), 3);
}

TEST(MakeMicroBatch, TakesTheAnchorTheReferenceAndTheFactorsOfItsSamples) {
  Rollout first = MakeRollout({1}, {2, 3}), second = MakeRollout({4, 5}, {6});
  for (Rollout* rollout : {&first, &second}) {
    rollout->support.columns = 2;
    rollout->support.ids.clear();
    rollout->support.logprobs.clear();
    for (const int32_t token : rollout->tokens) {
      rollout->support.ids.insert(rollout->support.ids.end(), {token, token + 10});
      rollout->support.logprobs.insert(rollout->support.logprobs.end(), {-1, -2});
    }
  }
  const std::vector<TrainSample> samples = {{.rollout = &first,
                                             .advantage = 2,
                                             .anchor = {-0.1f, -0.2f, -0.3f, -0.4f},
                                             .reference = {-5, -6},
                                             .importance = {0.5f, 3}},
                                            {.rollout = &second, .advantage = -1, .reference = {-7}}};
  const std::vector<float> weights = {0.1f, 0.2f, 0.3f};
  const RecordedTokens recorded = MakeMicroBatch(samples, weights, false, at::kCPU).recorded;
  const auto floats = [](const at::Tensor& x) {
    return std::vector<float>(x.const_data_ptr<float>(), x.const_data_ptr<float>() + x.numel());
  };
  EXPECT_EQ(floats(recorded.advantages), (std::vector<float>{1, 6, -1}));
  EXPECT_EQ(floats(recorded.support_logprobs), (std::vector<float>{-0.1f, -0.2f, -0.3f, -0.4f, -1, -2}));
  EXPECT_EQ(floats(recorded.reference_logprobs), (std::vector<float>{-5, -6, -7}));
  EXPECT_EQ(floats(recorded.weights), weights);
  EXPECT_EQ(recorded.support_ids.size(1), 2);
  EXPECT_EQ(recorded.support_ids[1][1].item<int>(), 13);
}

TEST(MakeMicroBatch, GathersTheExpertsOfTheTokensThatArePacked) {
  const std::vector<int32_t> prompt = {1, 2, 3};
  Rollout rollouts[] = {MakeRollout(prompt, {4, 5}), MakeRollout(prompt, {6})};
  uint8_t expert = 0;
  for (Rollout& rollout : rollouts) {
    rollout.routing.layers = 2;
    rollout.routing.experts_per_token = 1;
    const size_t tokens = prompt.size() + rollout.tokens.size() - 1;
    for (size_t i = 0; i < 2 * tokens; ++i) rollout.routing.experts.push_back(expert++);
  }
  std::vector<TrainSample> samples;
  for (const Rollout& rollout : rollouts) samples.push_back({.rollout = &rollout});
  const std::vector<float> weights(3, 1);
  using List = std::vector<int64_t>;
  const auto layer = [&](bool share, size_t i) {
    return Values(MakeMicroBatch(samples, weights, share, at::kCPU).routing.at(i).flatten().contiguous());
  };
  EXPECT_EQ(layer(false, 0), (List{0, 2, 4, 6, 8, 10, 12}));
  EXPECT_EQ(layer(false, 1), (List{1, 3, 5, 7, 9, 11, 13}));
  EXPECT_EQ(layer(true, 0),
            (List{0, 2, 4, 6, 12}));  // the second prompt but for its last token is the first's
  rollouts[1].routing.experts.pop_back();
  EXPECT_THROW(layer(false, 0), Error);
}

TEST(SplitByTokens, FillsMicroBatchesUpToTheBudget) {
  using Cuts = std::vector<size_t>;
  EXPECT_EQ(SplitByTokens(std::vector<int64_t>{3, 4, 3, 7, 1}, 7), (Cuts{0, 2, 3, 4, 5}));
  EXPECT_EQ(SplitByTokens(std::vector<int64_t>{3, 4, 3, 7, 1}, 8), (Cuts{0, 2, 3, 5}));
  EXPECT_EQ(SplitByTokens(std::vector<int64_t>{20, 1, 20}, 7), (Cuts{0, 1, 2, 3}));
  EXPECT_EQ(SplitByTokens(std::vector<int64_t>{}, 7), (Cuts{0}));
}

}  // namespace
}  // namespace augur
