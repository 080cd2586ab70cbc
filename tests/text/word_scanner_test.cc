#include "text/word_scanner.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "text/regex.h"

namespace augur {
namespace {

constexpr KnownPattern kPatterns[] = {KnownPattern::kGpt2, KnownPattern::kLlama3, KnownPattern::kQwen2};

std::vector<std::string_view> Scan(KnownPattern pattern, std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t start = 0; start < text.size();) {
    const size_t end = WordEnd(pattern, text, start);
    words.push_back(text.substr(start, end - start));
    start = end;
  }
  return words;
}

std::vector<std::string_view> Match(const Regex& regex, std::string_view text) {
  std::vector<std::string_view> words;
  regex.Isolate(text, [&](std::string_view word) { words.push_back(word); });
  return words;
}

// Rich in what the alternatives of the patterns look at.
std::string RandomText(std::mt19937* random) {
  static const std::vector<std::string> pieces = {
      "a",      "B",      "é",          "漢",         "1",          "٣",          "½",
      "'",      "'s",     "'S",         "'ſ",         "'re",        "'LL",        "’",
      " ",      "  ",     "\t",         "\n",         "\r\n",       "\u00A0",     "\u3000",
      "\u2028", "\u180E", "\u200B",     ".",          "!?",         "_",          "\u0301",
      "😀",     "\u1C89", "\U000143FA", "\U00011DE0", "\U00016D70", "\U0010FFFF", std::string(1, '\0')};
  std::string text;
  for (int length = (*random)() % 24; length > 0; --length) {
    if ((*random)() % 8 == 0) {
      const char32_t c = (*random)() % 0x110000;
      AppendUtf8(&text, c >= 0xD800 && c <= 0xDFFF ? 'x' : c);
    } else {
      text += pieces[(*random)() % pieces.size()];
    }
  }
  return text;
}

TEST(WordScannerTest, ScannersCutAsTheirRegularExpressionsDo) {
  std::mt19937 random(1);
  for (const KnownPattern pattern : kPatterns) {
    const Regex regex(PatternText(pattern), "pattern");
    for (int i = 0; i < 20000; ++i) {
      const std::string text = RandomText(&random);
      ASSERT_EQ(Scan(pattern, text), Match(regex, text)) << text;
    }
  }
}

TEST(WordScannerTest, EveryCharacterHasTheClassItHasInTheRegularExpression) {
  for (const KnownPattern pattern : kPatterns) {
    const Regex regex(PatternText(pattern), "pattern");
    for (char32_t c = 0; c < 0x110000; ++c) {
      if ((c >= 0xD800 && c <= 0xDFFF) || (c > 0x32400 && c % 101 != 0)) continue;  // planes 4 on are alike
      std::string text = "a";
      AppendUtf8(&text, c);
      text += "1";
      AppendUtf8(&text, c);
      text += " ";
      AppendUtf8(&text, c);
      ASSERT_EQ(Scan(pattern, text), Match(regex, text)) << static_cast<uint32_t>(c);
    }
  }
}

TEST(WordScannerTest, RecognisesItsOwnPatternsOnly) {
  for (const KnownPattern pattern : kPatterns) EXPECT_EQ(RecognisePattern(PatternText(pattern)), pattern);
  EXPECT_EQ(RecognisePattern("\\p{N}"), std::nullopt);
}

TEST(RegexTest, PiecesCoverTheTextAndEmptyMatchesOnlyCut) {
  using Pieces = std::vector<std::string_view>;
  EXPECT_EQ(Match(Regex("b", "p"), "abcb"), (Pieces{"a", "b", "c", "b"}));
  EXPECT_EQ(Match(Regex("x*", "p"), "axé"), (Pieces{"a", "x", "é"}));
  EXPECT_EQ(Match(Regex("(?=b)", "p"), "aab"), (Pieces{"aa", "b"}));
  EXPECT_EQ(Match(Regex::Literal(".*", "p"), "a.*b"), (Pieces{"a", ".*", "b"}));
  EXPECT_TRUE(Match(Regex("a", "p"), "").empty());
}

TEST(RegexTest, AHostilePatternGivesUpWithAnError) {
  const Regex regex("(?:a+)+[!?]", "pattern");
  const std::string text(64, 'a');
  EXPECT_THROW(Match(regex, text), Error);
}

TEST(RegexTest, LongRunsNeitherOverflowNorFail) {
  for (const KnownPattern pattern : kPatterns) {
    const Regex regex(PatternText(pattern), "pattern");
    for (const char* unit : {"a", " ", "漢", "\n ", "1", "!", "\t"}) {
      std::string text;
      while (text.size() < 300'000) text += unit;
      text += "x";
      EXPECT_EQ(Match(regex, text), Scan(pattern, text));
    }
  }
}

}  // namespace
}  // namespace augur
