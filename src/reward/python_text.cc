#include "reward/python_text.h"

#include <algorithm>
#include <iterator>

#include "base/utf8.h"

namespace augur {
namespace {

struct Range {
  char32_t first, last;
};

constexpr Range kSpaces[] = {{0x9, 0xD},       {0x1C, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                             {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                             {0x205F, 0x205F}, {0x3000, 0x3000}};

constexpr Range kDigits[] = {
    {0x30, 0x39},       {0xB2, 0xB3},       {0xB9, 0xB9},       {0x660, 0x669},     {0x6F0, 0x6F9},
    {0x7C0, 0x7C9},     {0x966, 0x96F},     {0x9E6, 0x9EF},     {0xA66, 0xA6F},     {0xAE6, 0xAEF},
    {0xB66, 0xB6F},     {0xBE6, 0xBEF},     {0xC66, 0xC6F},     {0xCE6, 0xCEF},     {0xD66, 0xD6F},
    {0xDE6, 0xDEF},     {0xE50, 0xE59},     {0xED0, 0xED9},     {0xF20, 0xF29},     {0x1040, 0x1049},
    {0x1090, 0x1099},   {0x1369, 0x1371},   {0x17E0, 0x17E9},   {0x1810, 0x1819},   {0x1946, 0x194F},
    {0x19D0, 0x19DA},   {0x1A80, 0x1A89},   {0x1A90, 0x1A99},   {0x1B50, 0x1B59},   {0x1BB0, 0x1BB9},
    {0x1C40, 0x1C49},   {0x1C50, 0x1C59},   {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},
    {0x2460, 0x2468},   {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
    {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},   {0xA620, 0xA629},
    {0xA8D0, 0xA8D9},   {0xA900, 0xA909},   {0xA9D0, 0xA9D9},   {0xA9F0, 0xA9F9},   {0xAA50, 0xAA59},
    {0xABF0, 0xABF9},   {0xFF10, 0xFF19},   {0x104A0, 0x104A9}, {0x10A40, 0x10A43}, {0x10D30, 0x10D39},
    {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x11066, 0x1106F}, {0x110F0, 0x110F9}, {0x11136, 0x1113F},
    {0x111D0, 0x111D9}, {0x112F0, 0x112F9}, {0x11450, 0x11459}, {0x114D0, 0x114D9}, {0x11650, 0x11659},
    {0x116C0, 0x116C9}, {0x11730, 0x11739}, {0x118E0, 0x118E9}, {0x11950, 0x11959}, {0x11C50, 0x11C59},
    {0x11D50, 0x11D59}, {0x11DA0, 0x11DA9}, {0x16A60, 0x16A69}, {0x16AC0, 0x16AC9}, {0x16B50, 0x16B59},
    {0x1D7CE, 0x1D7FF}, {0x1E140, 0x1E149}, {0x1E2F0, 0x1E2F9}, {0x1E950, 0x1E959}, {0x1F100, 0x1F10A},
    {0x1FBF0, 0x1FBF9}};

template <size_t N>
bool Contains(const Range (&ranges)[N], char32_t c) {
  const Range* found = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                                        [](char32_t value, const Range& r) { return value < r.first; });
  return found != std::begin(ranges) && c <= (found - 1)->last;
}

// Offset of the code point that ends just before `end`; end must not be 0.
size_t PreviousCodePoint(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

}  // namespace

bool IsPythonSpace(char32_t c) { return Contains(kSpaces, c); }

bool IsPythonDigit(char32_t c) { return Contains(kDigits, c); }

std::string_view LastCodePoints(std::string_view text, size_t count) {
  size_t start = text.size();
  while (start > 0 && count > 0) {
    start = PreviousCodePoint(text, start);
    --count;
  }
  return text.substr(start);
}

size_t SkipPythonSpace(std::string_view text, size_t offset) {
  while (offset < text.size()) {
    size_t next = offset;
    if (!IsPythonSpace(NextCodePoint(text, &next))) break;
    offset = next;
  }
  return offset;
}

std::string_view PythonStrip(std::string_view text) {
  text.remove_prefix(SkipPythonSpace(text, 0));
  while (!text.empty()) {
    const size_t start = PreviousCodePoint(text, text.size());
    size_t next = start;
    if (!IsPythonSpace(NextCodePoint(text, &next)) || next != text.size()) break;
    text.remove_suffix(text.size() - start);
  }
  return text;
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from, done)) {
    out.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  return out.append(text, done);
}

}  // namespace augur
