#include "text/byte_level.h"

#include <array>
#include <cstdint>

#include "base/utf8.h"

namespace augur {
namespace {

// Printable Latin-1 stands for itself; the other bytes, in order, take the characters from U+0100 on.
constexpr int kAlphabetEnd = 0x144;

constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<int16_t, kAlphabetEnd> ByteOfCharacter() {
  std::array<int16_t, kAlphabetEnd> table{};
  table.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    table[StandsForItself(byte) ? byte : next++] = static_cast<int16_t>(byte);
  }
  return table;
}

constexpr auto kByteOfCharacter = ByteOfCharacter();

}  // namespace

bool BytesFromByteLevel(std::string_view token, std::string* bytes) {
  bytes->clear();
  for (size_t offset = 0; offset < token.size();) {
    const char32_t c = NextCodePoint(token, &offset);
    if (c >= kAlphabetEnd || kByteOfCharacter[c] < 0) return false;
    bytes->push_back(static_cast<char>(kByteOfCharacter[c]));
  }
  return true;
}

}  // namespace augur
