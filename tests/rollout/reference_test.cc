// The engine against the training forward over whole sequences.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <gtest/gtest.h>

#include "model/forward.h"
#include "rollout/full_forward_backend.h"
#include "rollout/generation.h"
#include "rollout/small_model.h"

namespace augur {
namespace {

class ReferenceTest : public testing::TestWithParam<Family> {
 protected:
  const Model model_ = SmallModel(GetParam());
  const EngineOptions fp32_{.precision = RolloutPrecision::kFp32};
};

TEST_P(ReferenceTest, IncrementalDecodingEqualsTheFullForward) {
  const auto requests = RandomRequests({3, 17, 32, 1, 50});
  SamplingOptions options;
  options.max_tokens = 30;
  options.samples = 2;
  options.support = 6;
  options.temperature = 0.8;
  const std::unique_ptr<Backend> plain = MakeFullForwardBackend(model_, fp32_);
  plain->ReservePages(1000);
  EngineStats stats;
  const GenerateHooks hooks;
  const auto expected =
      Generation({model_.config, *plain, 1000, 256, 0}, requests, options, hooks).Run(&stats);
  Engine engine(model_, fp32_);
  ExpectSameRollouts(expected, engine.Generate(requests, options), 1e-4f);
}

// Largest difference between recorded log-probs and the training forward's.
double LargestDifference(const Model& model, const std::vector<Rollout>& rollouts, double temperature) {
  const at::NoGradGuard no_grad;
  double largest = 0;
  for (const Rollout& rollout : rollouts) {
    std::vector<int32_t> whole = rollout.prompt_tokens;
    whole.insert(whole.end(), rollout.tokens.begin(), rollout.tokens.end());
    const at::Tensor hidden = Forward(model, PackSequences({&whole, 1}, at::kCPU)).hidden;
    const at::Tensor scores =
        at::log_softmax(at::linear(hidden.to(at::kFloat), model.head.to(at::kFloat)) / temperature, -1);
    for (size_t t = 0; t < rollout.tokens.size(); ++t) {
      const at::Tensor row = scores[static_cast<int64_t>(rollout.prompt_tokens.size() + t) - 1];
      for (int64_t c = 0; c < rollout.support.columns; ++c) {
        const size_t at = t * rollout.support.columns + c;
        const int32_t id = rollout.support.ids[at];
        if (id < 0) continue;
        largest = std::max(largest, std::fabs(row[id].item<double>() - rollout.support.logprobs[at]));
      }
    }
  }
  return largest;
}

TEST_P(ReferenceTest, RecordedLogProbsAreTheTrainersAtTheSamplingTemperature) {
  SamplingOptions options;
  options.max_tokens = 20;
  options.support = 8;
  options.temperature = 0.7;
  const auto rollouts = Engine(model_, fp32_).Generate(RandomRequests({3, 17, 32}), options);
  EXPECT_LT(LargestDifference(model_, rollouts, 0.7), 1e-4);
}

TEST_P(ReferenceTest, Bf16AndFp8StayNearTheTrainer) {
  SamplingOptions options;
  options.max_tokens = 10;
  options.support = 3;
  const auto requests = RandomRequests({3, 17, 32});
  const auto bf16 = Engine(model_, {.precision = RolloutPrecision::kBf16}).Generate(requests, options);
  const auto fp8 = Engine(model_, {.precision = RolloutPrecision::kFp8}).Generate(requests, options);
  const double narrow = LargestDifference(model_, bf16, 1), narrowest = LargestDifference(model_, fp8, 1);
  EXPECT_GT(narrow, 1e-5);
  EXPECT_LT(narrow, 0.3);
  EXPECT_GT(narrowest, narrow);
  EXPECT_LT(narrowest, 3.0);
}

INSTANTIATE_TEST_SUITE_P(Families, ReferenceTest, testing::ValuesIn(SmallFamilies()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace augur
