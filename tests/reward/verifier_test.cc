#include "reward/verifier.h"

#include <gtest/gtest.h>

#include "base/error.h"

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
      UnmatchableWarnings(FindVerifier("gsm8k", ""), prompts),
      std::vector<std::string>{"a.jsonl:8: the ground truth '1,234' cannot match itself under 'gsm8k'"});
}

}  // namespace
}  // namespace augur
