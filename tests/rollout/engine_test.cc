#include "rollout/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "message_of.h"
#include "rollout/small_model.h"

namespace augur {
namespace {

constexpr float kTolerance = 1e-4f;

SamplingOptions ShortOptions() {
  SamplingOptions options;
  options.max_tokens = 12;
  options.samples = 3;
  options.support = 5;
  options.seed = 7;
  return options;
}

class EngineTest : public testing::TestWithParam<Family> {
 protected:
  const Model model_ = SmallModel(GetParam());
  const EngineOptions fp32_{.precision = RolloutPrecision::kFp32};
};

TEST_P(EngineTest, ARepeatedRunGivesTheSame) {
  Engine engine(model_, fp32_);
  const auto requests = RandomRequests({3, 17, 32, 1});
  const auto first = engine.Generate(requests, ShortOptions());
  ExpectSameRollouts(first, engine.Generate(requests, ShortOptions()), 0);
  ASSERT_EQ(first.size(), 12u);
  for (const Rollout& rollout : first) {
    EXPECT_EQ(rollout.tokens.size(), 12u);
    EXPECT_EQ(rollout.finish, FinishReason::kLength);
    EXPECT_EQ(rollout.support.ids.size(), 12u * 6);
  }
  EXPECT_NE(first[0].tokens, first[1].tokens);
}

TEST_P(EngineTest, AResponseDoesNotDependOnTheOthersInTheBatch) {
  Engine engine(model_, fp32_);
  const auto requests = RandomRequests({3, 17, 32, 1, 16, 40});
  const auto together = engine.Generate(requests, ShortOptions());
  std::vector<Rollout> alone;
  for (const GenerateRequest& request : requests) {
    for (Rollout& rollout : engine.Generate({&request, 1}, ShortOptions())) alone.push_back(rollout);
  }
  ExpectSameRollouts(together, alone, kTolerance);
}

TEST_P(EngineTest, GroupSharingEqualsSeparatePrefills) {
  const auto requests = RandomRequests({3, 17, 32});
  Engine together(model_, fp32_), one_by_one(model_, {.precision = RolloutPrecision::kFp32, .max_batch = 1});
  ExpectSameRollouts(together.Generate(requests, ShortOptions()),
                     one_by_one.Generate(requests, ShortOptions()), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Families, EngineTest, testing::ValuesIn(Families()),
                         [](const auto& info) { return info.param.name; });

const Family kLlama = Families()[0];

TEST(EngineErrors, ABadPromptFailsAndTheOthersGoOn) {
  Engine engine(SmallModel(kLlama), {});
  auto requests = RandomRequests({4, 0, 127, 128, 5});
  requests[4].tokens[2] = kVocab;
  SamplingOptions options = ShortOptions();
  options.samples = 1;
  const auto rollouts = engine.Generate(requests, options);
  EXPECT_EQ(rollouts[0].finish, FinishReason::kLength);
  EXPECT_EQ(rollouts[1].error, "prompt 2: the prompt is empty; give at least one token");
  EXPECT_EQ(rollouts[2].tokens.size(), 1u);  // one position is left
  EXPECT_EQ(rollouts[3].error.find("prompt 4: the prompt has 128 tokens"), 0u) << rollouts[3].error;
  EXPECT_EQ(rollouts[4].error.find("prompt 5: token id 61 is outside"), 0u) << rollouts[4].error;
  for (int i : {1, 3, 4}) EXPECT_EQ(rollouts[i].finish, FinishReason::kFailed);
  requests[4].tokens[2] = -1;
  EXPECT_EQ(engine.Generate(requests, options)[4].finish, FinishReason::kFailed);
}

TEST(EngineErrors, WeightsThatTurnNanFailTheirPromptsAndGoodOnesReturn) {
  const Model model = SmallModel(kLlama);
  Engine engine(model, {.precision = RolloutPrecision::kFp32});
  const auto requests = RandomRequests({4, 5});
  const auto before = engine.Generate(requests, ShortOptions());
  Model broken = SmallModel(kLlama);
  broken.layers[1].down.weight.fill_(std::numeric_limits<float>::quiet_NaN());
  engine.UpdateWeights(broken, 1);
  for (const Rollout& rollout : engine.Generate(requests, ShortOptions())) {
    EXPECT_EQ(rollout.finish, FinishReason::kFailed);
    EXPECT_NE(rollout.error.find("prompt"), std::string::npos);
    EXPECT_NE(rollout.error.find("not finite"), std::string::npos);
  }
  engine.UpdateWeights(model, 2);
  ExpectSameRollouts(before, engine.Generate(requests, ShortOptions()), 0);
}

TEST(EngineErrors, ATokenWhoseEmbeddingIsNanFailsOnlyTheSequencesThatMeetIt) {
  Model model = SmallModel(kLlama);
  auto requests = RandomRequests({6, 6});
  for (GenerateRequest& request : requests) {
    for (int32_t& token : request.tokens) token = token % 40;
  }
  requests[1].tokens[3] = 50;
  model.embedding[50].fill_(std::numeric_limits<float>::quiet_NaN());
  Engine engine(model, {.precision = RolloutPrecision::kFp32});
  SamplingOptions options = ShortOptions();
  options.vocabulary = 45;
  const auto rollouts = engine.Generate(requests, options);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rollouts[i].finish, FinishReason::kLength) << rollouts[i].error;
  for (int i = 3; i < 6; ++i) EXPECT_EQ(rollouts[i].finish, FinishReason::kFailed);
}

TEST(EngineOptionsTest, OptionsOutOfRangeAreErrors) {
  Engine engine(SmallModel(kLlama), {});
  const auto requests = RandomRequests({4});
  auto message = [&](auto change) {
    SamplingOptions options = ShortOptions();
    change(&options);
    return MessageOf([&] { engine.Generate(requests, options); });
  };
  EXPECT_EQ(message([](auto* o) { o->support = 62; }).find("support: top-62 of a vocabulary of 61"), 0u);
  EXPECT_EQ(message([](auto* o) { o->support = -1; }).find("support"), 0u);
  EXPECT_EQ(message([](auto* o) { o->temperature = -1; }).find("temperature"), 0u);
  EXPECT_EQ(message([](auto* o) { o->temperature = NAN; }).find("temperature"), 0u);
  EXPECT_EQ(message([](auto* o) { o->top_p = 0; }).find("top_p"), 0u);
  EXPECT_EQ(message([](auto* o) { o->min_p = 1.5; }).find("min_p"), 0u);
  EXPECT_EQ(message([](auto* o) { o->top_k = -2; }).find("top_k"), 0u);
  EXPECT_EQ(message([](auto* o) { o->max_tokens = 0; }).find("max_tokens"), 0u);
  EXPECT_EQ(message([](auto* o) { o->samples = 0; }).find("samples"), 0u);
  EXPECT_EQ(message([](auto* o) { o->stop_texts = {"x"}; }).find("stop_texts"), 0u);
}

TEST(EngineOptionsTest, TrainingRefusesTruncatedSampling) {
  SamplingOptions plain = ShortOptions();
  EXPECT_EQ(MessageOf([&] { CheckTrainingSampling(plain, "rollout"); }), "no error");
  auto refused = [](auto change) {
    SamplingOptions options = ShortOptions();
    change(&options);
    return MessageOf([&] { CheckTrainingSampling(options, "rollout"); }).find("truncates") !=
           std::string::npos;
  };
  EXPECT_TRUE(refused([](auto* o) { o->top_k = 5; }));
  EXPECT_TRUE(refused([](auto* o) { o->top_p = 0.9; }));
  EXPECT_TRUE(refused([](auto* o) { o->min_p = 0.1; }));
  EXPECT_TRUE(refused([](auto* o) { o->temperature = 0; }));
}

TEST(EngineOptionsTest, PrecisionsHaveNames) {
  EXPECT_EQ(ParseRolloutPrecision("fp8", "x"), RolloutPrecision::kFp8);
  EXPECT_NE(MessageOf([] { ParseRolloutPrecision("bf61", "--precision"); }).find("bf16"), std::string::npos);
}

}  // namespace
}  // namespace augur
