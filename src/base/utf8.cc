#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>

namespace augur {
namespace {

// Length of the sequence a lead byte announces; 0 if it cannot lead.
int SequenceLength(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

bool IsContinuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// The second byte's range is narrower after E0, ED, F0 and F4: it excludes overlong forms, surrogates and
// values past U+10FFFF.
bool SecondByteFits(unsigned char lead, unsigned char second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return IsContinuation(second);
  }
}

// Length of the longest beginning of ill-formed, non-empty `bytes` that could have become a character.
size_t MaximalSubpart(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const size_t length = std::min<size_t>(SequenceLength(byte(0)), bytes.size());
  if (length < 2 || !SecondByteFits(byte(0), byte(1))) return 1;
  size_t end = 2;
  while (end < length && IsContinuation(byte(end))) ++end;
  return end;
}

// The character at text[*offset], moving behind it. U+0080 to U+009F, too, are commands to a terminal.
void AppendVisible(std::string_view text, std::string_view kept, size_t* offset, std::string* out) {
  const size_t start = *offset;
  const char32_t c = NextCodePoint(text, offset);
  const bool control = c < 0x20 || (c >= 0x7F && c < 0xA0);
  if (c == kInvalidCodePoint) {
    *out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[start]));
  } else if (control && (c >= 0x7F || kept.find(static_cast<char>(c)) == std::string_view::npos)) {
    *out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
  } else {
    *out += text.substr(start, *offset - start);
  }
}

}  // namespace

char32_t NextCodePoint(std::string_view text, size_t* offset) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[*offset + i]); };
  const int length = SequenceLength(byte(0));
  const bool complete = length > 0 && static_cast<size_t>(length) <= text.size() - *offset;
  if (!complete || (length > 1 && !SecondByteFits(byte(0), byte(1)))) {
    ++*offset;
    return kInvalidCodePoint;
  }
  char32_t value = length == 1 ? byte(0) : byte(0) & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    if (!IsContinuation(byte(i))) {
      ++*offset;
      return kInvalidCodePoint;
    }
    value = (value << 6) | (byte(i) & 0x3F);
  }
  *offset += length;
  return value;
}

size_t FirstInvalidUtf8(std::string_view text) {
  for (size_t offset = 0; offset < text.size();) {
    const size_t start = offset;
    if (NextCodePoint(text, &offset) == kInvalidCodePoint) return start;
  }
  return std::string_view::npos;
}

void AppendUtf8(std::string* out, char32_t c) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (c >> 12)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (c >> 18)));
    out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

std::string LossyUtf8(std::string_view bytes) {
  std::string text;
  for (size_t offset = 0; offset < bytes.size();) {
    const size_t start = offset;
    if (NextCodePoint(bytes, &offset) != kInvalidCodePoint) {
      text.append(bytes, start, offset - start);
      continue;
    }
    offset = start + MaximalSubpart(bytes.substr(start));
    text += "\xEF\xBF\xBD";
  }
  return text;
}

size_t IncompleteUtf8Suffix(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto lead = static_cast<unsigned char>(text[text.size() - back]);
    if (IsContinuation(lead)) continue;
    const int length = SequenceLength(lead);
    if (length <= static_cast<int>(back)) return 0;
    const bool fits =
        back == 1 || SecondByteFits(lead, static_cast<unsigned char>(text[text.size() - back + 1]));
    return fits ? back : 0;
  }
  return 0;
}

std::string Visible(std::string_view text) {
  std::string out;
  for (size_t offset = 0; offset < text.size();) AppendVisible(text, "\n\t", &offset, &out);
  return out;
}

std::string Printable(std::string_view text) {
  constexpr size_t kMost = 200;
  std::string out;
  for (size_t offset = 0; offset < text.size();) {
    if (out.size() >= kMost) return out + "...";
    AppendVisible(text, "", &offset, &out);
  }
  return out;
}

}  // namespace augur
