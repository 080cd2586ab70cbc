#include "text/nfc.h"

#include <gtest/gtest.h>

namespace augur {
namespace {

TEST(NfcTest, ComposesDecomposesAndOrders) {
  EXPECT_EQ(ToNfc("e\u0301"), "\u00E9");
  EXPECT_EQ(ToNfc("\u212B"), "\u00C5");
  EXPECT_EQ(ToNfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(ToNfc("\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(ToNfc("\u0958"), "\u0915\u093C");  // excluded from composition
}

TEST(NfcTest, KeepsTheJamoThatUtf8procDrops) { EXPECT_EQ(ToNfc("\uAF64\u11A7u"), "\uAF64\u11A7u"); }

// `tokenizers` carries the data of Unicode 9, where these have no combining class and no composition.
TEST(NfcTest, LeavesCharactersNewerThanUnicode9Alone) {
  EXPECT_EQ(ToNfc("q\u0345\u08D3"), "q\u0345\u08D3");
  EXPECT_EQ(ToNfc("\U00011935\U00011930"), "\U00011935\U00011930");
}

TEST(NfcTest, TheQuickCheckNeverPassesWhatWouldChange) {
  for (const char* text : {"e\u0301", "\u212B", "q\u0307\u0323", "\uAC00\u11A8", "\u0958", "\u0344"}) {
    EXPECT_FALSE(IsSurelyNfc(text)) << text;
  }
  for (const char* text : {"", "plain", "\u00E9t\u00E9", "漢字かな", "한국어", "हिन्दी", "q\u0316\u0315"}) {
    EXPECT_TRUE(IsSurelyNfc(text)) << text;
    EXPECT_EQ(ToNfc(text), text);
  }
}

TEST(NfcTest, ALongRunOfMarksIsSortedInReasonableTime) {
  std::string marks = "a";
  for (int i = 0; i < 200'000; ++i) marks += i % 2 ? "\u0315" : "\u0323";
  const std::string sorted = ToNfc(marks);
  EXPECT_EQ(sorted.substr(0, 3), "\u1EA1");
  EXPECT_EQ(sorted.size(), marks.size());  // "a" and the first mark became one character of three bytes
}

}  // namespace
}  // namespace augur
