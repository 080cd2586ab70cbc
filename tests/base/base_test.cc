#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/names.h"
#include "base/random.h"
#include "base/utf8.h"
#include "message_of.h"

namespace augur {
namespace {

class FileTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(dir_); }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  const std::filesystem::path dir_ =
      std::filesystem::temp_directory_path() / ("augur-base-" + std::to_string(getpid()));
};

TEST(Error, NamesPlaceFaultAndRemedy) {
  EXPECT_STREQ(Error("a.json:3", "no key", "add it").what(), "a.json:3: no key; add it");
  EXPECT_STREQ(Error("", "no key", "").what(), "no key");
}

TEST(Error, GetsItsPlaceFromWhoKnowsIt) {
  EXPECT_EQ(AtPlace("line 1", [] { return 7; }), 7);
  const auto fail = [] { throw Error("chat", "no messages", "give one"); };
  EXPECT_EQ(MessageOf([&] { AtPlace("line 1", fail); }), "line 1: chat: no messages; give one");
}

TEST(Error, SuggestsTheNearestName) {
  const std::string_view names[] = {"aggregated", "uniform", "exact"};
  EXPECT_EQ(NearestName("unifrom", names), "uniform");
  EXPECT_EQ(NearestName("x", {}), "");
  EXPECT_EQ(NearestName("uni", names), "uniform");
  EXPECT_EQ(NearestName("foo", names), "");
  const std::string_view commands[] = {"sft", "train"};
  EXPECT_EQ(NearestName("stf", commands), "sft");
  EXPECT_EQ(NearestName("tfs", commands), "");
  EXPECT_STREQ(UnknownName("mask.tail", "tail", "exat", names).what(),
               "mask.tail: unknown tail 'exat'; did you mean 'exact'? Valid: aggregated, uniform, exact");
}

TEST(Names, AreListedWithOrBeforeTheLast) {
  const std::string_view names[] = {"a", "b", "c"};
  EXPECT_EQ(OneOf(names), "a, b or c");
  EXPECT_EQ(OneOf(std::span(names).first(1)), "a");
}

TEST_F(FileTest, WritesAndReadsBack) {
  const auto path = dir_ / "a";
  WriteFileAtomically(path, std::string("x\0y", 3));
  EXPECT_EQ(ReadFile(path), std::string("x\0y", 3));
  EXPECT_EQ(MappedFile(path).text(), std::string("x\0y", 3));
  WriteFileAtomically(path, "");
  EXPECT_TRUE(MappedFile(path).bytes().empty());
}

TEST_F(FileTest, AFailedWriteLeavesTheOldContentAndNoTemporary) {
  const auto path = dir_ / "a";
  WriteFileAtomically(path, "old");
  // A file-size limit makes write() fail half-way, as a full disk does.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before, limit;
  getrlimit(RLIMIT_FSIZE, &before);
  limit = before;
  limit.rlim_cur = 1000;
  setrlimit(RLIMIT_FSIZE, &limit);
  const std::string message = MessageOf([&] { WriteFileAtomically(path, std::string(5000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(message.find("cannot write"), std::string::npos) << message;
  EXPECT_EQ(ReadFile(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
}

TEST_F(FileTest, ALinkStaysALinkAndAPipeAPipe) {
  WriteFileAtomically(dir_ / "target", "old");
  std::filesystem::create_symlink("target", dir_ / "link");
  WriteFileAtomically(dir_ / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(dir_ / "link"));
  EXPECT_EQ(ReadFile(dir_ / "target"), "new");

  const std::filesystem::path pipe = dir_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::future<std::string> read = std::async(std::launch::async, [&] { return ReadFile(pipe); });
  WriteFileAtomically(pipe, "through");
  EXPECT_EQ(read.get(), "through");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_NE(MessageOf([] { WriteFileAtomically("/dev/full", "x"); }).find("No space left"),
            std::string::npos);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

TEST_F(FileTest, WhatCannotBeWrittenIsKnownBefore) {
  RequireWritable(dir_ / "new");
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
  EXPECT_NE(MessageOf([&] { RequireWritable(dir_); }).find("is a directory; name a file"), std::string::npos);
  EXPECT_NE(MessageOf([&] { RequireWritable(dir_ / "none" / "x"); }).find("check the path"),
            std::string::npos);
}

TEST_F(FileTest, AnAtomicFileWithoutCommitLeavesNothing) {
  {
    AtomicFile(dir_ / "a").Write("half");
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

TEST_F(FileTest, NamesAGitLfsPointer) {
  const std::string message =
      MessageOf([&] { RefuseLfsPointer("version https://git-lfs.github.com/spec/v1\n", "w"); });
  EXPECT_EQ(
      message,
      "w: is a git-lfs pointer, not the file itself; run 'git lfs pull' in that directory or download the "
      "file again");
}

TEST_F(FileTest, ReleasedPagesReadTheSame) {
  const std::string content(100000, 'x');
  WriteFileAtomically(dir_ / "a", content);
  const MappedFile file(dir_ / "a");
  EXPECT_EQ(file.text(), content);
  ReleasePages(file.bytes());
  ReleasePages(file.bytes().subspan(1, 3));
  EXPECT_EQ(file.text(), content);
}

TEST_F(FileTest, SaysWhatIsWrongWithThePath) {
  EXPECT_NE(MessageOf([&] { ReadFile(dir_ / "none"); }).find("No such file"), std::string::npos);
  EXPECT_NE(MessageOf([&] { MappedFile{dir_}; }).find("is a directory"), std::string::npos);
}

TEST(JsonTest, ReportsPlaceAndDepth) {
  EXPECT_EQ(ParseJson("{\"a\": [1]}", "x")["a"][0], 1);
  EXPECT_NE(MessageOf([] { ParseJson("{\"a\": }", "f.json"); }).find("f.json: not valid JSON"),
            std::string::npos);
  EXPECT_NE(MessageOf([] { ParseJson(std::string(100000, '['), "f"); }).find("nested deeper"),
            std::string::npos);
  EXPECT_EQ(ParseJson("\"" + std::string(1000, '[') + "\"", "f").get<std::string>().size(), 1000);
}

TEST(JsonTest, RefusesAKeyTwiceInOneObject) {
  EXPECT_EQ(ParseJsonUniqueKeys(R"({"a": {"b": 1}, "b": [{"b": 2}]})", "f")["b"][0]["b"], 2);
  EXPECT_EQ(MessageOf([] { ParseJsonUniqueKeys(R"({"c": {"a": 1, "a": 1}})", "f"); }),
            "f: the key 'a' occurs twice in one object; the file is damaged; fetch it again");
}

TEST(JsonTest, MessagesStayShortAndPrintable) {
  const std::string message = MessageOf([] { ParseJson("[\"" + std::string(100000, 'x') + "\xff\"]", "f"); });
  EXPECT_LT(message.size(), 400);
  EXPECT_EQ(FirstInvalidUtf8(message), std::string::npos);
  EXPECT_EQ(Quoted("a\n\xffñ"), "'a\\x0a\\xffñ'");
}

TEST(JsonTest, NamesTheMissingOrMistypedKey) {
  const Json object = {{"a", 1}};
  EXPECT_NE(MessageOf([&] { RequireKey(object, "b", "f:2"); }).find("f:2: the key \"b\" is missing"),
            std::string::npos);
  EXPECT_NE(MessageOf([&] { RequireString(object, "a", "f"); }).find("not a string"), std::string::npos);
}

// Vectors published with Random123 (kat_vectors, philox4x32 10 rounds).
TEST(PhiloxTest, MatchesThePublishedVectors) {
  const Philox zero = Philox::At(0, 0, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  const Philox ones = Philox::At(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

TEST(PhiloxTest, UniformStaysInsideTheOpenInterval) {
  Philox extreme{{0, ~0u, 0, 0}};
  EXPECT_GT(extreme.Uniform(0), 0.0f);
  EXPECT_LT(extreme.Uniform(1), 1.0f);
}

TEST(Utf8Test, RoundTripsEveryScalarValue) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(&text, c);
    size_t offset = 0;
    ASSERT_EQ(NextCodePoint(text, &offset), c);
    ASSERT_EQ(offset, text.size());
  }
}

TEST(Utf8Test, RejectsIllFormedSequences) {
  for (const char* bad :
       {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80", "\xE2\x82", "\xFF"}) {
    EXPECT_EQ(FirstInvalidUtf8(std::string("ab") + bad), 2) << bad;
  }
  EXPECT_EQ(FirstInvalidUtf8("añ漢😀"), std::string_view::npos);
}

TEST(Utf8Test, ReplacesEachIllFormedPartOnce) {
  // As Python's bytes.decode(errors="replace") and Rust's from_utf8_lossy give them.
  EXPECT_EQ(LossyUtf8("a漢😀"), "a漢😀");
  EXPECT_EQ(LossyUtf8("\xE2\x82 a"), "\uFFFD a");
  EXPECT_EQ(LossyUtf8("\xF0\x9F\x98\xE2\x82\xAC"), "\uFFFD€");
  EXPECT_EQ(LossyUtf8("\xE0\x80\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(LossyUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(LossyUtf8("\xF4\x90z\xC3"), "\uFFFD\uFFFDz\uFFFD");
}

TEST(Utf8Test, ShowsWhatATerminalWouldObey) {
  EXPECT_EQ(Visible("a漢\t\n\x1b[2J\r\x7f\u009b\u00a0\xFF"), "a漢\t\n\\x1b[2J\\x0d\\x7f\\x9b\u00a0\\xff");
  EXPECT_EQ(Printable("a\n\u009b"), "a\\x0a\\x9b");
}

TEST(JsonTest, NamesKindsWithTheirArticles) {
  const char* kinds[] = {"[]", "an array", "{}", "an object", "1", "a number", "null", "null"};
  for (size_t i = 0; i < std::size(kinds); i += 2) EXPECT_EQ(KindOf(Json::parse(kinds[i])), kinds[i + 1]);
}

TEST(ErrorTest, IsOneLineOfValidUtf8WhateverItQuotes) {
  EXPECT_STREQ(Error("f", "\x1b[2J\u009b", "").what(), "f: \\x1b[2J\\x9b");
  EXPECT_STREQ(Error("f", "read \"\xFF\n\"", "").what(), "f: read \"\uFFFD\\n\"");
}

TEST(Utf8Test, FindsTheUnfinishedCharacterAtTheEnd) {
  EXPECT_EQ(IncompleteUtf8Suffix("abc"), 0);
  EXPECT_EQ(IncompleteUtf8Suffix("a\xF0\x9F\x98"), 3);
  EXPECT_EQ(IncompleteUtf8Suffix("a\xE2"), 1);
  EXPECT_EQ(IncompleteUtf8Suffix("a😀"), 0);
  EXPECT_EQ(IncompleteUtf8Suffix("\xFF"), 0);
}

TEST(Crc32cTest, GivesThePublishedValuesInOnePieceOrMany) {
  // RFC 3720, B.4, and the check value of the catalogue of CRC algorithms.
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(Crc32c("456789", Crc32c("123")), 0xE3069283u);
}

}  // namespace
}  // namespace augur
