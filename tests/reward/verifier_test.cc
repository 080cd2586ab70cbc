#include "reward/verifier.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "message_of.h"

namespace augur {
namespace {

TEST(Verifier, IsFoundByNameOrSuggested) {
  for (const Verifier& verifier : Verifiers()) EXPECT_EQ(&FindVerifier(verifier.name, ""), &verifier);
  try {
    FindVerifier("gsm8", "reward.verifier");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(
        std::string(error.what()).find("reward.verifier: unknown verifier 'gsm8'; did you mean 'gsm8k'?"),
        std::string::npos);
  }
}

TEST(Verifier, ExactIgnoresOnlyTheWhiteSpaceAround) {
  const Verifier& exact = FindVerifier("exact", "");
  EXPECT_EQ(exact.score(" 1 2\n", "1 2"), 1.0);
  EXPECT_EQ(exact.score("12", "1 2"), 0.0);
  EXPECT_EQ(exact.score("A", "a"), 0.0);
  EXPECT_EQ(exact.score("7", 7), 1.0);
}

struct MatchCase {
  std::string_view verifier;
  Json answer;
  bool matchable;
};

TEST(Verifier, TellsGroundTruthsThatCannotMatchThemselves) {
  const std::string longer(400, 'x');
  const MatchCase cases[] = {
      {"math_dapo", "42", true},
      {"math_dapo", "\\frac{1}{2}", true},
      {"math_dapo", "a\nb", true},  // in a box
      {"math_dapo", longer, false},
      {"math_dapo_boxed", "\\text{Evelyn}", true},
      {"math_dapo_boxed", "42}", false},
      {"math_dapo_boxed", longer, false},
      {"gsm8k", "1234", true},
      {"gsm8k", -7, true},
      {"gsm8k", "1,234", false},
      {"gsm8k", "72 clips", false},
      {"gsm8k", "half of 48\n#### 72", false},
      {"gsm8k_flexible", "1,234", true},
      {"gsm8k_flexible", "$5", false},
      {"math_strict", "\\frac{1}{2}", true},
      {"math_strict", "", false},
      {"exact", "any text", true},
      {"exact", nullptr, false},
      {"countdown", {{"numbers", {1, 2}}, {"target", 3}}, true},
      {"countdown", "3", false},
      {"countdown", {{"numbers", {-1, 2}}, {"target", 3}}, false},
  };
  for (const MatchCase& c : cases) {
    EXPECT_EQ(!WhyUnmatchable(FindVerifier(c.verifier, ""), c.answer).has_value(), c.matchable)
        << c.verifier << " " << c.answer;
  }
}

TEST(Verifier, WarnsWithTheLineOfTheGroundTruth) {
  std::vector<Prompt> prompts(2);
  for (size_t i = 0; i < 2; ++i) prompts[i].file = "a.jsonl", prompts[i].line = 7 + i;
  prompts[0].ground_truth = "5";
  prompts[1].ground_truth = "1,234";
  EXPECT_EQ(
      UnmatchableWarnings("gsm8k", prompts, ""),
      std::vector<std::string>{"a.jsonl:8: the ground truth '1,234' cannot match itself under 'gsm8k'"});
}

TEST(Verifiers, AutoChoosesByGroundTruthThenByDataSource) {
  const auto chosen = [](std::string source, Json truth) {
    Prompt prompt;
    prompt.data_source = std::move(source);
    prompt.ground_truth = std::move(truth);
    return VerifierFor("auto", prompt, "").name;
  };
  EXPECT_EQ(chosen("test", {{"numbers", {1, 2}}, {"target", 3}}), "countdown");
  EXPECT_EQ(chosen("openai/gsm8k", "4"), "gsm8k");
  EXPECT_EQ(chosen("math_dapo", "4"), "math_dapo");
  EXPECT_EQ(chosen("AIME2024", "4"), "math_dapo");
  EXPECT_EQ(chosen("DigitalLearningGmbH/MATH-lighteval", "4"), "math_strict");
  EXPECT_EQ(chosen("sort", "1 2"), "exact");
  EXPECT_EQ(chosen("letters", "a"), "exact");
  Prompt prompt;
  EXPECT_EQ(VerifierFor("gsm8k", prompt, "").name, "gsm8k");
  EXPECT_NE(MessageOf([&] { VerifierFor("gsm", prompt, "here"); }).find("here"), std::string::npos);
}

TEST(Verifiers, EqualAnswersHaveOneText) {
  const auto answer = [](std::string_view verifier, std::string_view response) {
    return FindVerifier(verifier, "").answer(response).value_or("none");
  };
  EXPECT_EQ(answer("math_dapo", "so\nAnswer: 0.5"), answer("math_dapo", "thus \\boxed{\\frac{1}{2}}"));
  EXPECT_EQ(answer("gsm8k", "#### 1,200"), "1200");
  EXPECT_EQ(answer("gsm8k", "1200"), "none");
  EXPECT_EQ(answer("gsm8k_flexible", "It is 7"), "7");
  EXPECT_EQ(answer("exact", " 1 2\n"), "1 2");
  EXPECT_EQ(answer("math_strict", "I do not know"), "none");
}

TEST(Verifiers, FindAnAnswerWhereTheyReadOne) {
  const std::string long_text(400, 'x');
  struct Case {
    std::string_view verifier;
    std::string response;
    bool found;
  };
  const Case cases[] = {
      {"math_dapo", "Answer: 5", true},
      {"math_dapo", "\\boxed{5}", true},
      {"math_dapo", "It is 5.", false},
      {"math_dapo", "Answer: 5 " + long_text, false},  // verl reads the last 300 characters
      {"math_dapo_boxed", "Answer: 5", false},
      {"math_dapo_boxed", "\\boxed{5}", true},
      {"math_strict", "42", true},
      {"math_strict", "first\n42", false},
      {"math_strict", "Answer: 42 " + long_text, true},
      {"gsm8k", "so 42", false},
      {"gsm8k", "#### 42", true},
      {"gsm8k_flexible", "no number.", false},
      {"gsm8k_flexible", "so 42.", true},
      {"countdown", "<answer>(1 + 2) * 3 = 9</answer>", true},
      {"countdown", "I give up", false},
      {"exact", " \n", false},
      {"exact", "anything", true},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(FindVerifier(c.verifier, "").answer(c.response).has_value(), c.found)
        << c.verifier << c.response;
  }
}

}  // namespace
}  // namespace augur
