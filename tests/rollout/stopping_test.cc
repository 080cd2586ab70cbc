// How responses end, and what the hooks see.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "rollout/engine.h"
#include "rollout/small_model.h"
#include "rollout/stop_text.h"

namespace augur {
namespace {

class StoppingTest : public testing::Test {
 protected:
  SamplingOptions Options() const {
    SamplingOptions options;
    options.max_tokens = 40;
    options.samples = 4;
    options.seed = 5;
    options.support = 3;
    return options;
  }

  const Model model_ = SmallModel(SmallFamilies()[0]);
  const std::vector<GenerateRequest> requests_ = RandomRequests({5, 9});
  Engine engine_{model_, {.precision = RolloutPrecision::kFp32}};
};

TEST_F(StoppingTest, AnEndTokenEndsAResponseAndIsItsLast) {
  const auto endless = engine_.Generate(requests_, Options());
  SamplingOptions options = Options();
  options.end_tokens = {7, 30, 41};
  const auto rollouts = engine_.Generate(requests_, options);
  int ended = 0;
  for (size_t i = 0; i < rollouts.size(); ++i) {
    const auto& whole = endless[i].tokens;
    const auto end =
        std::find_first_of(whole.begin(), whole.end(), options.end_tokens.begin(), options.end_tokens.end());
    const bool ends = end != whole.end();
    EXPECT_EQ(rollouts[i].finish, ends ? FinishReason::kEos : FinishReason::kLength);
    EXPECT_EQ(rollouts[i].tokens, std::vector<int32_t>(whole.begin(), ends ? end + 1 : end));
    EXPECT_EQ(rollouts[i].logprobs.size(), rollouts[i].tokens.size());
    EXPECT_EQ(rollouts[i].support.ids.size(), rollouts[i].tokens.size() * 4);
    ended += ends;
  }
  EXPECT_GT(ended, 0);
}

TEST_F(StoppingTest, AStopTextEndsAResponseThoughItSpansTokens) {
  const auto endless = engine_.Generate(requests_, Options());
  std::vector<std::string> bytes;
  for (int i = 0; i < kVocab; ++i)
    bytes.push_back({static_cast<char>('a' + i % 7), static_cast<char>('A' + i % 5)});
  GenerateHooks hooks;
  hooks.text = [&](int32_t token) { return std::string_view(bytes[token]); };
  SamplingOptions options = Options();
  options.stop_texts = {"CdA", "Bb"};
  const auto rollouts = engine_.Generate(requests_, options, hooks);
  int stopped = 0;
  for (size_t i = 0; i < rollouts.size(); ++i) {
    std::string text;
    size_t length = 0;
    auto found = [&] {
      return text.find("CdA") != std::string::npos || text.find("Bb") != std::string::npos;
    };
    while (length < endless[i].tokens.size() && !found()) text += bytes[endless[i].tokens[length++]];
    EXPECT_EQ(rollouts[i].tokens.size(), length);
    EXPECT_EQ(rollouts[i].finish, found() ? FinishReason::kStopText : FinishReason::kLength);
    stopped += found();
  }
  EXPECT_GT(stopped, 0);
}

TEST(StopTextFinder, FindsWhatBeginsInEarlierTokens) {
  StopTextFinder finder;
  const std::vector<std::string> stops = {"</answer>", "\n\n"};
  for (const char* piece : {"x", "\n", "y</ans", "we", "r"}) EXPECT_FALSE(finder.Add(piece, stops));
  EXPECT_FALSE(finder.Add("</answe", stops));
  EXPECT_FALSE(finder.Add("", stops));
  EXPECT_TRUE(finder.Add("r> and more", stops));
}

TEST(StopTextFinder, FindsAStopWhereverATokenEndsWithinIt) {
  const std::string text = "a b\n</answer>";
  const std::vector<std::string> stops = {"</answer>", "</a>"};
  for (size_t first = 0; first < text.size(); ++first) {
    for (size_t second = first; second < text.size(); ++second) {
      StopTextFinder finder;
      EXPECT_FALSE(finder.Add(text.substr(0, first), stops));
      EXPECT_FALSE(finder.Add(text.substr(first, second - first), stops)) << first << " " << second;
      EXPECT_TRUE(finder.Add(text.substr(second), stops)) << first << " " << second;
    }
  }
  StopTextFinder bytes;
  for (size_t i = 0; i < text.size(); ++i)
    EXPECT_EQ(bytes.Add(text.substr(i, 1), stops), i + 1 == text.size());
}

TEST_F(StoppingTest, CancellingKeepsWhatIsThere) {
  const auto whole = engine_.Generate(requests_, Options());
  int steps = 0;
  GenerateHooks hooks;
  hooks.cancelled = [&] { return ++steps > 10; };
  const auto rollouts = engine_.Generate(requests_, Options(), hooks);
  for (size_t i = 0; i < rollouts.size(); ++i) {
    EXPECT_EQ(rollouts[i].finish, FinishReason::kCancelled);
    ASSERT_EQ(rollouts[i].tokens.size(), 11u);  // one from the prefill and one from each step
    EXPECT_TRUE(std::equal(rollouts[i].tokens.begin(), rollouts[i].tokens.end(), whole[i].tokens.begin()));
  }
  ExpectSameRollouts(whole, engine_.Generate(requests_, Options()));
}

TEST_F(StoppingTest, HooksSeeEveryTokenInOrderAndTheProgress) {
  std::map<std::pair<size_t, int64_t>, std::vector<int32_t>> seen;
  GenerateProgress last;
  GenerateHooks hooks;
  hooks.token = [&](size_t request, int64_t sample, int32_t token) {
    seen[{request, sample}].push_back(token);
  };
  hooks.progress = [&](const GenerateProgress& progress) { last = progress; };
  const auto rollouts = engine_.Generate(requests_, Options(), hooks);
  for (size_t i = 0; i < rollouts.size(); ++i) {
    EXPECT_EQ((seen[{i / 4, static_cast<int64_t>(i % 4)}]), rollouts[i].tokens);
    EXPECT_EQ(rollouts[i].prompt, requests_[i / 4].key);
    EXPECT_EQ(rollouts[i].sample, static_cast<int64_t>(i % 4));
    EXPECT_EQ(rollouts[i].prompt_tokens, requests_[i / 4].tokens);
  }
  EXPECT_EQ(last.finished, 8);
  EXPECT_EQ(last.total, 8);
  EXPECT_EQ(last.new_tokens, 8 * 40);
  EXPECT_EQ(last.prefill_tokens, 14);
}

TEST_F(StoppingTest, AResponseThatOutgrowsTheMemoryFailsAloneAndKeepsItsTokens) {
  EngineOptions small{.precision = RolloutPrecision::kFp32};
  small.kv_bytes = 3 * model_.config.layers * 2 * (6 + 16) * 16 * 4;  // 48 tokens
  SamplingOptions options = Options();
  options.samples = 1;
  options.max_tokens = 60;
  const auto requests = RandomRequests({5, 60, 9});
  Engine engine(model_, small);
  const auto rollouts = engine.Generate(requests, options);
  const auto roomy = engine_.Generate(requests, options);
  for (const int i : {0, 2}) {
    EXPECT_EQ(rollouts[i].finish, FinishReason::kFailed);
    EXPECT_EQ(rollouts[i].error.find(requests[i].where + ": the memory for keys and values is full"), 0u)
        << rollouts[i].error;
    ASSERT_EQ(rollouts[i].tokens.size(), 48 - requests[i].tokens.size() + 1);
    EXPECT_TRUE(std::equal(rollouts[i].tokens.begin(), rollouts[i].tokens.end(), roomy[i].tokens.begin()));
  }
  EXPECT_NE(rollouts[1].error.find("prompt 2: the prompt has 60 tokens, but the memory"), std::string::npos);
}

TEST_F(StoppingTest, PaddingRowsOfTheHeadAreNeverSampledNorRecorded) {
  SamplingOptions options = Options();
  options.vocab_size = 20;
  options.support = 19;
  for (const Rollout& rollout : engine_.Generate(requests_, options)) {
    for (const int32_t token : rollout.tokens) EXPECT_LT(token, 20);
    for (const int32_t id : rollout.support.ids) EXPECT_LT(id, 20);
  }
}

TEST_F(StoppingTest, GreedyIsTheSameForAllSamplesAndSeeds) {
  SamplingOptions options = Options();
  options.temperature = 0;
  const auto first = engine_.Generate(requests_, options);
  options.seed = 99;
  const auto second = engine_.Generate(requests_, options);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].tokens, first[i / 4 * 4].tokens);
    EXPECT_EQ(first[i].tokens, second[i].tokens);
  }
}

}  // namespace
}  // namespace augur
