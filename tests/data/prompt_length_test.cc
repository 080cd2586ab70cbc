#include "data/prompt_length.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace augur {
namespace {

// Three prompts of 1, 5 and 3 tokens.
std::vector<Prompt> ThreePrompts() {
  std::vector<Prompt> prompts(3);
  const char* texts[] = {"a", "abcde", "abc"};
  for (size_t i = 0; i < 3; ++i) {
    prompts[i].index = i;
    prompts[i].text = texts[i];
    prompts[i].file = "f.jsonl";
    prompts[i].line = 10 + i;
  }
  return prompts;
}

std::vector<int32_t> OneTokenALetter(const Prompt& prompt) {
  return {prompt.text.begin(), prompt.text.end()};
}

TEST(PromptLength, AnOverlongPromptIsAnErrorWithItsLine) {
  try {
    TokenizePrompts(ThreePrompts(), OneTokenALetter, 3, Overlong::kError);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "f.jsonl:11: the prompt has 5 tokens, 3 are allowed; raise data.max_prompt_tokens where the "
                 "model's context allows it, or set data.overlong to drop or "
                 "truncate_left");
  }
  EXPECT_EQ(TokenizePrompts(ThreePrompts(), OneTokenALetter, 5, Overlong::kError).prompts.size(), 3);
}

TEST(PromptLength, DropsAndCounts) {
  const TokenizedPrompts kept = TokenizePrompts(ThreePrompts(), OneTokenALetter, 3, Overlong::kDrop);
  ASSERT_EQ(kept.prompts.size(), 2);
  EXPECT_EQ(kept.prompts[1].index, 2);
  EXPECT_EQ(kept.tokens[1], (std::vector<int32_t>{'a', 'b', 'c'}));
  EXPECT_EQ(kept.dropped, 1);
  EXPECT_EQ(kept.truncated, 0);
  EXPECT_THROW(TokenizePrompts(ThreePrompts(), OneTokenALetter, 0, Overlong::kDrop), Error);
}

TEST(PromptLength, TruncatesOnTheLeftAndCounts) {
  const TokenizedPrompts kept = TokenizePrompts(ThreePrompts(), OneTokenALetter, 3, Overlong::kTruncateLeft);
  ASSERT_EQ(kept.prompts.size(), 3);
  EXPECT_EQ(kept.tokens[1], (std::vector<int32_t>{'c', 'd', 'e'}));
  EXPECT_EQ(kept.truncated, 1);
}

}  // namespace
}  // namespace augur
