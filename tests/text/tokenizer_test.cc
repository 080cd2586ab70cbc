#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "message_of.h"
#include "text/small_tokenizer.h"

namespace augur {
namespace {

TEST(TokenizerTest, MergesTheLowestRankFirstAndTheLeftmostOfEquals) {
  const Tokenizer tokenizer = SmallTokenizer();
  // "th" has a lower rank than "he": the, t-h-e in order of ranks.
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode("the")), "the");
  EXPECT_EQ(tokenizer.Encode("the"), std::vector<int32_t>{*tokenizer.Find("the")});
  EXPECT_EQ(tokenizer.Encode("aaa"), (std::vector<int32_t>{*tokenizer.Find("aa"), *tokenizer.Find("a")}));
}

TEST(TokenizerTest, LongWordsMergeAsShortOnesDo) {
  const Tokenizer tokenizer = SmallTokenizer();
  // No merge of the small tokenizer crosses "he|th", so that a long word is its parts joined.
  std::string word;
  std::vector<int32_t> expected;
  for (int i = 0; i < 1000; ++i) {
    const std::string part = i % 3 == 0 ? "the" : i % 3 == 1 ? "aab" : "xyz";
    word += part;
    for (const int32_t id : tokenizer.Encode(part)) expected.push_back(id);
  }
  EXPECT_EQ(tokenizer.Encode(word), expected);
}

TEST(TokenizerTest, DecodingGivesEveryByteSequenceBack) {
  const Tokenizer tokenizer = SmallTokenizer();
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (int j = 0; j < 20; ++j) {
      char32_t c = random() % 0x110000;
      if (c >= 0xD800 && c <= 0xDFFF) c = 'x';
      AppendUtf8(&text, c);
    }
    EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text)), text);
  }
}

TEST(TokenizerTest, InvalidUtf8InTheTextIsAnErrorWithItsPlace) {
  const Tokenizer tokenizer = SmallTokenizer();
  EXPECT_EQ(MessageOf([&] { tokenizer.Encode("ab\xC3 c"); }),
            "text: not valid UTF-8 at byte 2; convert the text to UTF-8");
}

TEST(TokenizerTest, AnIdWithoutATokenIsAnError) {
  const Tokenizer tokenizer = SmallTokenizer();
  for (const int32_t bad : {-1, static_cast<int32_t>(tokenizer.vocab_size()), INT32_MAX}) {
    EXPECT_NE(MessageOf([&] {
                tokenizer.Decode(std::vector<int32_t>{bad});
              }).find(fmt::format("no token has the id {}; the vocabulary goes up to", bad)),
              std::string::npos);
  }
}

TEST(TokenizerTest, SpecialTokensAreRecognisedAndCanBeSkipped) {
  const Tokenizer tokenizer = SmallTokenizer();
  const int32_t end = *tokenizer.Find("<|end|>");
  EXPECT_TRUE(tokenizer.IsSpecial(end));
  const std::vector<int32_t> ids = tokenizer.Encode("a<|end|>");
  EXPECT_EQ(ids.back(), end);
  EXPECT_EQ(tokenizer.Decode(ids), "a<|end|>");
  EXPECT_EQ(tokenizer.Decode(ids, true), "a");
}

TEST(TokenizerTest, ManyThreadsMayShareOne) {
  const Tokenizer tokenizer = SmallTokenizer();
  const std::string text = "the other aab then 今天 <|end|> theta";
  const std::vector<int32_t> expected = SmallTokenizer().Encode(text);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 500; ++j) wrong += tokenizer.Encode(text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(IncrementalDecoderTest, EmitsWholeCharactersThatJoinToTheDecodedText) {
  const Tokenizer tokenizer = SmallTokenizer();
  std::mt19937 random(2);
  for (int i = 0; i < 500; ++i) {
    std::vector<int32_t> ids;
    if (i % 2 == 0) {
      ids = tokenizer.Encode("é漢😀 the <|end|>👩‍🚀");
      ids.resize(random() % (ids.size() + 1));
    } else {
      for (int j = 0; j < 12; ++j) ids.push_back(static_cast<int32_t>(random() % tokenizer.vocab_size()));
    }
    for (const bool skip_special : {false, true}) {
      IncrementalDecoder decoder(tokenizer, skip_special);
      std::string joined;
      for (const int32_t id : ids) {
        const std::string part = decoder.Add(id);
        EXPECT_EQ(FirstInvalidUtf8(part), std::string_view::npos);
        joined += part;
      }
      joined += decoder.Finish();
      EXPECT_EQ(joined, tokenizer.Decode(ids, skip_special));
    }
  }
}

TEST(IncrementalDecoderTest, HoldsACharacterBackUntilItIsComplete) {
  const Tokenizer tokenizer = SmallTokenizer();
  IncrementalDecoder decoder(tokenizer);
  const std::vector<int32_t> ids = tokenizer.Encode("😀");
  ASSERT_EQ(ids.size(), 4u);
  std::string held;  // one after the other: operands of + may be computed in any order
  for (int i = 0; i < 3; ++i) held += decoder.Add(ids[i]);
  EXPECT_EQ(held, "");
  EXPECT_EQ(decoder.Add(ids[3]), "😀");
  EXPECT_EQ(decoder.Finish(), "");
}

class EosIdsTest : public testing::Test {
 protected:
  EosIdsTest() { std::filesystem::create_directories(directory_); }
  ~EosIdsTest() override { std::filesystem::remove_all(directory_); }
  void Write(const char* name, std::string_view text) { WriteFileAtomically(directory_ / name, text); }

  const std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / fmt::format("augur_eos_{}", ::getpid());
};

TEST_F(EosIdsTest, JoinsWhatTheFilesName) {
  const Tokenizer tokenizer = SmallTokenizer();
  EXPECT_TRUE(ReadEosIds(directory_, tokenizer).empty());
  Write("config.json", R"({"eos_token_id": 3})");
  Write("generation_config.json", R"({"eos_token_id": [5, 3]})");
  Write("tokenizer_config.json", R"({"eos_token": {"content": "<|end|>"}})");
  EXPECT_EQ(ReadEosIds(directory_, tokenizer), (std::vector<int32_t>{3, 5, *tokenizer.Find("<|end|>")}));
}

TEST_F(EosIdsTest, RefusesATokenThatIsNotInTheVocabulary) {
  Write("config.json", R"({"eos_token_id": 151643})");
  EXPECT_NE(MessageOf([&] {
              ReadEosIds(directory_, SmallTokenizer());
            }).find("config.json: the end-of-sequence token 151643 is not in the vocabulary"),
            std::string::npos);
}

}  // namespace
}  // namespace augur
