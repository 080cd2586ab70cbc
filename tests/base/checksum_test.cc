#include "base/checksum.h"

#include <gtest/gtest.h>

#include <string>

namespace augur {
namespace {

uint64_t Of(const std::string& text) { return Checksum(std::as_bytes(std::span(text))); }

// Values of the reference implementation (xxhsum -H1).
TEST(Checksum, IsXxh64) {
  EXPECT_EQ(Of(""), 0xef46db3751d8e999u);
  EXPECT_EQ(Of("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(Of("abc"), 0x44bc2cf5ad770999u);
  EXPECT_EQ(Of("Nobody inspects the spammish repetition"), 0xfbcea83c8a378bf1u);
}

TEST(Checksum, SeesEveryBit) {
  std::string text(100, 'x');
  const uint64_t before = Of(text);
  for (char& c : text) {
    c ^= 1;
    EXPECT_NE(Of(text), before);
    c ^= 1;
  }
  EXPECT_EQ(Of(text), before);
}

}  // namespace
}  // namespace augur
