#include "reward/scorer.h"

#include <gtest/gtest.h>

#include "message_of.h"

namespace augur {
namespace {

Prompt Asked(const std::string& source, const Json& truth) {
  Prompt prompt;
  prompt.data_source = source;
  prompt.ground_truth = truth;
  return prompt;
}

TEST(Scorer, AVerifiersScoreSaysWhatWasAnsweredAndWhetherItWasRight) {
  const Scorer scorer("gsm8k", "here", -1);
  const Prompt prompt = Asked("gsm8k", "72"), broken = Asked("gsm8k", Json::object());
  const auto score = [&](const Prompt& asked, const std::string& text) {
    return scorer.Start({.prompt = &asked, .text = text}).get();
  };
  const Score right = score(prompt, "so it is\n#### 72"), wrong = score(prompt, "#### 71");
  EXPECT_TRUE(right.right && right.answered && !right.failed && right.value == 1);
  EXPECT_EQ(right.answer, "72");
  EXPECT_TRUE(!wrong.right && wrong.answered && !wrong.failed && wrong.value == 0);
  EXPECT_EQ(wrong.answer, "71");
  const Score none = score(prompt, "I do not know");
  EXPECT_TRUE(!none.right && !none.answered && !none.failed);
  const Score failed = score(broken, "#### 72");
  EXPECT_TRUE(failed.failed && !failed.right && !failed.answered);
  EXPECT_EQ(failed.value, -1);
  EXPECT_NE(failed.error, "");
}

TEST(LimitErrors, StopsAboveTheShareAndWhereNothingCouldBeScored) {
  const auto message = [](int64_t errors, int64_t responses, double most) {
    return MessageOf([&] { LimitErrors({errors, responses, "f:3", "why"}, most, "this step's", false); });
  };
  EXPECT_EQ(message(0, 8, 0), "no error");
  EXPECT_EQ(message(2, 8, 0.25), "no error");
  EXPECT_EQ(
      message(3, 8, 0.25),
      "f:3: 3 of this step's 8 responses could not be scored, more than reward.max_errors (0.25); here: "
      "why; correct the data, reward.verifier or reward.max_errors");
  EXPECT_TRUE(message(8, 8, 1).starts_with("f:3: not one of this step's 8 responses could be scored"));
  EXPECT_EQ(message(7, 8, 1), "no error");
}

TEST(Scorer, NamesTheVerifiersOfEachSource) {
  const Scorer scorer("auto", "here");
  std::vector<Prompt> prompts = {Asked("openai/gsm8k", "72"), Asked("sort", "1 2"),
                                 Asked("openai/gsm8k", "1")};
  prompts.push_back(Asked("broken", "1"));
  prompts.back().fault = "f:4: no prompt";
  const VerifierNames names = NamesBySource(scorer, prompts);
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(names.at("openai/gsm8k"), "gsm8k");
  EXPECT_EQ(names.at("sort"), "exact");
  EXPECT_EQ(DescribeNames(names), "openai/gsm8k by gsm8k, sort by exact");
  VerifierNames many;
  for (const char c : std::string("abcdefghij")) many[std::string(1, c)] = "v";
  EXPECT_TRUE(DescribeNames(many).ends_with(", h by v, and 2 more")) << DescribeNames(many);
}

}  // namespace
}  // namespace augur
