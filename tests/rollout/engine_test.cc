#include "rollout/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "message_of.h"
#include "rollout/small_model.h"

namespace augur {
namespace {

SamplingOptions ShortOptions() {
  SamplingOptions options;
  options.max_tokens = 12;
  options.samples = 3;
  options.support = 5;
  options.seed = 7;
  options.temperature = 0.9;
  return options;
}

int64_t CountTokens(const std::vector<Rollout>& rollouts) {
  int64_t tokens = 0;
  for (const Rollout& rollout : rollouts) tokens += static_cast<int64_t>(rollout.tokens.size());
  return tokens;
}

using Setting = std::tuple<Family, RolloutPrecision>;

class EngineTest : public testing::TestWithParam<Setting> {
 protected:
  EngineOptions Options() const { return {.precision = std::get<1>(GetParam())}; }
  const Model model_ = SmallModel(std::get<0>(GetParam()));
};

TEST_P(EngineTest, ARepeatedRunGivesTheSame) {
  Engine engine(model_, Options());
  const auto requests = RandomRequests({3, 17, 32, 1});
  const auto first = engine.Generate(requests, ShortOptions());
  ExpectSameRollouts(first, engine.Generate(requests, ShortOptions()));
  ASSERT_EQ(first.size(), 12u);
  for (const Rollout& rollout : first) {
    EXPECT_EQ(rollout.temperature, ShortOptions().temperature);
    EXPECT_EQ(rollout.support.columns, 6);
    EXPECT_EQ(rollout.tokens.size(), 12u);
    EXPECT_EQ(rollout.finish, FinishReason::kLength);
    EXPECT_EQ(rollout.support.ids.size(), 12u * 6);
  }
  EXPECT_NE(first[0].tokens, first[1].tokens);
}

TEST_P(EngineTest, AResponseDoesNotDependOnTheOthersInTheBatch) {
  Engine engine(model_, Options());
  const auto requests = RandomRequests({3, 17, 32, 1, 16, 40});
  const auto together = engine.Generate(requests, ShortOptions());
  std::vector<Rollout> alone;
  for (const GenerateRequest& request : requests) {
    for (Rollout& rollout : engine.Generate({&request, 1}, ShortOptions())) alone.push_back(rollout);
  }
  ExpectSameRollouts(together, alone);
}

TEST_P(EngineTest, GroupSharingEqualsSeparatePrefills) {
  Engine engine(model_, Options());
  const auto requests = RandomRequests({3, 17, 32});
  const auto shared = engine.Generate(requests, ShortOptions());
  EngineOptions one = Options();
  one.max_batch = 1;
  ExpectSameRollouts(shared, Engine(model_, one).Generate(requests, ShortOptions()));
  // The same samples, each prompt computed for it alone.
  std::vector<Rollout> separate(shared.size());
  for (int64_t sample = 0; sample < 3; ++sample) {
    for (size_t r = 0; r < requests.size(); ++r) {
      SamplingOptions options = ShortOptions();
      options.samples = sample + 1;
      separate[r * 3 + sample] = engine.Generate({&requests[r], 1}, options).back();
    }
  }
  ExpectSameRollouts(shared, separate);
}

TEST_P(EngineTest, PreemptionForLackOfMemoryChangesNothing) {
  const auto requests = RandomRequests({3, 17, 32, 20, 9, 28});
  SamplingOptions options = ShortOptions();
  options.max_tokens = 40;
  Engine roomy(model_, Options());
  const auto expected = roomy.Generate(requests, options);
  EXPECT_EQ(roomy.stats().preemptions, 0);
  const ModelConfig& config = model_.config;
  const int64_t padded = (config.head_dim + 15) / 16 * 16;
  const int64_t element = std::get<1>(GetParam()) == RolloutPrecision::kFp32 ? 4 : 2;
  const int64_t page = config.layers * config.kv_heads * (config.head_dim + padded) * 16 * element;
  int64_t preemptions = 0;
  for (int64_t pages = 5; pages <= 21; pages += 4) {
    EngineOptions small = Options();
    small.kv_bytes = pages * page;
    Engine engine(model_, small);
    const auto found = engine.Generate(requests, options);
    ExpectSameRollouts(expected, found);
    preemptions += engine.stats().preemptions;
    // Those that return are prefilled: no token is decoded twice, and the first one is the prompt's.
    EXPECT_EQ(engine.stats().decoded_tokens, CountTokens(found) - static_cast<int64_t>(found.size()));
  }
  EXPECT_GT(preemptions, 0);
}

TEST_P(EngineTest, NewWeightsGiveWhatANewEngineGives) {
  const Model other = SmallModel(std::get<0>(GetParam()), 2);
  const auto requests = RandomRequests({3, 17});
  Engine engine(model_, Options()), other_engine(other, Options());
  const auto before = engine.Generate(requests, ShortOptions());
  EXPECT_EQ(before[0].weight_version, 0);
  engine.UpdateWeights(other, 5);
  const auto after = engine.Generate(requests, ShortOptions());
  EXPECT_EQ(after[0].weight_version, 5);
  ExpectSameRollouts(after, other_engine.Generate(requests, ShortOptions()));
  EXPECT_NE(after[0].logprobs, before[0].logprobs);
}

TEST_P(EngineTest, MemoryGivenBackIsTakenAgain) {
  Engine engine(model_, Options());
  const auto requests = RandomRequests({3, 17});
  const auto before = engine.Generate(requests, ShortOptions());
  engine.ReleaseMemory();
  ExpectSameRollouts(before, engine.Generate(requests, ShortOptions()));
}

std::string SettingName(const testing::TestParamInfo<Setting>& info) {
  constexpr const char* kNames[] = {"fp32", "bf16", "fp8"};
  return std::get<0>(info.param).name + "_" + kNames[static_cast<int>(std::get<1>(info.param))];
}
INSTANTIATE_TEST_SUITE_P(Families, EngineTest,
                         testing::Combine(testing::ValuesIn(SmallFamilies()),
                                          testing::Values(RolloutPrecision::kFp32, RolloutPrecision::kBf16,
                                                          RolloutPrecision::kFp8)),
                         SettingName);

const Family kLlama = SmallFamilies()[0];

// Room for three of the responses in full: they are admitted as they will fit, not all at once and preempted.
TEST(EngineAdmission, CountsOnGrowth) {
  const Model model = SmallModel(kLlama);
  const ModelConfig& config = model.config;
  const int64_t padded = (config.head_dim + 15) / 16 * 16;
  const int64_t page = config.layers * config.kv_heads * (config.head_dim + padded) * 16 * 4;
  const auto requests = RandomRequests(std::vector<int>(24, 16));
  SamplingOptions options = ShortOptions();
  options.samples = 1;
  options.max_tokens = 96;
  EngineOptions tight{.precision = RolloutPrecision::kFp32};
  tight.kv_bytes = 22 * page;
  Engine engine(model, tight);
  const auto found = engine.Generate(requests, options);
  ExpectSameRollouts(Engine(model, {.precision = RolloutPrecision::kFp32}).Generate(requests, options),
                     found);
  EXPECT_GE(engine.stats().decode_batch, 3);
  EXPECT_LE(engine.stats().preemptions, 24);  // 49 without
}

// A preempted response gives its prompt's pages back as well, where nothing else runs on that prompt.
TEST(EngineAdmission, PreemptedResponsesAllEndWhereTheLongestFitsAlone) {
  const Model model = SmallModel(kLlama);
  const ModelConfig& config = model.config;
  const int64_t padded = (config.head_dim + 15) / 16 * 16;
  const int64_t page = config.layers * config.kv_heads * (config.head_dim + padded) * 16 * 4;
  const auto requests = RandomRequests({33, 40, 35});
  SamplingOptions options = ShortOptions();
  options.max_tokens = 80;
  for (const int64_t samples : {1, 2}) {
    options.samples = samples;
    const auto expected = Engine(model, {.precision = RolloutPrecision::kFp32}).Generate(requests, options);
    for (const int64_t pages : {9, 10, 12, 15, 20, 26}) {
      SCOPED_TRACE(testing::Message() << samples << " samples, " << pages << " pages");
      EngineOptions tight{.precision = RolloutPrecision::kFp32};
      tight.kv_bytes = pages * page;
      Engine engine(model, tight);
      const auto found = engine.Generate(requests, options);
      for (const Rollout& rollout : found) EXPECT_EQ(rollout.error, "");
      ExpectSameRollouts(expected, found);
    }
  }
}

// The pages of the call before are kept where they do, which is not where one sequence needs more.
TEST(EngineAdmission, ALongPromptFitsWhateverCameBefore) {
  const Model model = SmallModel(kLlama);
  const ModelConfig& config = model.config;
  const int64_t padded = (config.head_dim + 15) / 16 * 16;
  const int64_t page = config.layers * config.kv_heads * (config.head_dim + padded) * 16 * 4;
  EngineOptions tight{.precision = RolloutPrecision::kFp32};
  tight.kv_bytes = 8 * page;
  Engine engine(model, tight);
  SamplingOptions options = ShortOptions();
  options.samples = 1;
  options.max_tokens = 10;
  engine.Generate(RandomRequests({70}), options);
  options.max_tokens = 16;
  const auto requests = RandomRequests({112});
  const auto found = engine.Generate(requests, options);
  EXPECT_NE(found[0].finish, FinishReason::kFailed) << found[0].error;
  ExpectSameRollouts(Engine(model, tight).Generate(requests, options), found);
}

// A prompt whose keys and values just fit has room for one token.
TEST(EngineAdmission, APromptThatLeavesNoPageForItsResponseIsRefused) {
  const Model model = SmallModel(kLlama);
  const ModelConfig& config = model.config;
  const int64_t padded = (config.head_dim + 15) / 16 * 16;
  const int64_t page = config.layers * config.kv_heads * (config.head_dim + padded) * 16 * 4;
  EngineOptions tight{.precision = RolloutPrecision::kFp32};
  tight.kv_bytes = 3 * page;
  SamplingOptions options = ShortOptions();
  options.samples = 1;
  options.max_tokens = 1;
  const auto found = Engine(model, tight).Generate(RandomRequests({47, 48, 49}), options);
  EXPECT_EQ(found[0].finish, FinishReason::kLength) << found[0].error;
  for (const int i : {1, 2}) {
    EXPECT_EQ(found[i].finish, FinishReason::kFailed);
    EXPECT_NE(found[i].error.find("memory for keys and values holds 48"), std::string::npos)
        << found[i].error;
  }
}

// More prompts than one prefill takes.
TEST(EngineAdmission, AllThatCanJoinAreThereAtTheFirstStep) {
  SamplingOptions options = ShortOptions();
  options.samples = 1;
  options.max_tokens = 5;
  Engine engine(SmallModel(kLlama), {});
  engine.Generate(RandomRequests(std::vector<int>(100, 100)), options);
  EXPECT_EQ(engine.stats().decode_steps, 4);
  EXPECT_EQ(engine.stats().decode_batch, 100);
}

// Of 64 places two must be free before anyone joins while two wait.
TEST(EngineAdmission, LaterOnesJoinTogether) {
  auto requests = RandomRequests(std::vector<int>(66, 5));
  requests[0].max_tokens = 3;
  requests[1].max_tokens = 6;
  SamplingOptions options = ShortOptions();
  options.samples = 1;
  EngineOptions few;
  few.max_batch = 64;
  Engine engine(SmallModel(kLlama), few);
  engine.Generate(requests, options);
  // The last two join when the second response has ended, after five steps, and take eleven.
  EXPECT_EQ(engine.stats().decode_steps, 5 + 11);
}

// Room for one long response and one short one: each short one leaves its prompt's pages to the next.
TEST(EngineAdmission, PagesOfAPromptThatIsDoneAreFree) {
  const Model model = SmallModel(kLlama);
  const ModelConfig& config = model.config;
  const int64_t padded = (config.head_dim + 15) / 16 * 16;
  const int64_t page = config.layers * config.kv_heads * (config.head_dim + padded) * 16 * 4;
  auto requests = RandomRequests(std::vector<int>(7, 32));
  for (size_t i = 1; i < requests.size(); ++i) requests[i].max_tokens = 3;
  SamplingOptions options = ShortOptions();
  options.samples = 1;
  options.max_tokens = 30;
  EngineOptions tight{.precision = RolloutPrecision::kFp32};
  tight.max_batch = 2;
  tight.kv_bytes = 9 * page;
  Engine engine(model, tight);
  engine.Generate(requests, options);
  EXPECT_EQ(engine.stats().decode_steps, 29);  // those of the long one
}

TEST(EngineAdmission, ARequestMayAskForLess) {
  auto requests = RandomRequests({4, 5, 6});
  requests[1].max_tokens = 3;
  requests[2].max_tokens = 50;
  SamplingOptions options = ShortOptions();
  options.samples = 1;
  Engine engine(SmallModel(kLlama), {});
  const auto found = engine.Generate(requests, options);
  EXPECT_EQ(found[0].tokens.size(), 12u);
  EXPECT_EQ(found[1].tokens.size(), 3u);
  EXPECT_EQ(found[1].finish, FinishReason::kLength);
  EXPECT_EQ(found[2].tokens.size(), 12u);
  // The first tokens are the prompts'; then three rows twice, two rows nine times.
  EXPECT_EQ(engine.stats().decode_steps, 11);
  EXPECT_EQ(engine.stats().decoded_tokens, 3 * 2 + 2 * 9);
  EXPECT_DOUBLE_EQ(engine.stats().idle_share(), 1 - 24 / 33.0);
}

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
  broken.layers[1][kDown].weight.fill_(std::numeric_limits<float>::quiet_NaN());
  engine.UpdateWeights(broken, 1);
  for (const Rollout& rollout : engine.Generate(requests, ShortOptions())) {
    EXPECT_EQ(rollout.finish, FinishReason::kFailed);
    EXPECT_NE(rollout.error.find("prompt"), std::string::npos);
    EXPECT_NE(rollout.error.find("not finite"), std::string::npos);
  }
  engine.UpdateWeights(model, 2);
  ExpectSameRollouts(before, engine.Generate(requests, ShortOptions()));
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
  options.vocab_size = 45;
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
  EXPECT_EQ(message([](auto* o) { o->support = 61; }).find("support: top-61 of a vocabulary of 61"), 0u);
  EXPECT_EQ(message([](auto* o) { o->support = 60; }), "no error");
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
