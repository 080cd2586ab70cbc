#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "text/unicode_class.h"

namespace augur {
namespace {

constexpr char32_t kNfcCodePoints = 0x110000;
constexpr char32_t kActiveEnd = 0x30000;  // nothing from here on decomposes or combines

struct NfcRange {
  char32_t first, last;
};

// Characters that stay as they are, whatever stands around them, though utf8proc thinks otherwise: U+11A7,
// which it drops after a Hangul syllable, and those newer than Unicode 9 with a combining class or a
// composition.
constexpr NfcRange kKept[] = {
    {0x11A7, 0x11A7},   {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1AEB},
    {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC},
    {0x10EFA, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x11380, 0x113E2}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16100, 0x1612F}, {0x16D40, 0x16D6C}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}};

// kInert never changes nor lets anything across. kMark is a non-starter that form C keeps, in order of its
// class. kActive may decompose or compose.
enum class Role : uint8_t { kInert, kMark, kActive };

constexpr int kLongestDecomposition = 4;  // of one character, canonically; U+1F82 has four

int Decompose(char32_t c, utf8proc_int32_t* out) {
  int boundary = 0;
  return static_cast<int>(utf8proc_decompose_char(
      static_cast<utf8proc_int32_t>(c), out, kLongestDecomposition,
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary));
}

int CombiningClass(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

constexpr char32_t kFirstVowel = 0x1161, kLastFinal = 0x11C2;  // Hangul parts that join what stands before

std::vector<Role> BuildRoles() {
  std::vector<Role> roles(kNfcCodePoints, Role::kInert);
  for (char32_t c = 0; c < kActiveEnd; ++c) {
    if (c >= 0xAC00 && c <= 0xDFFF) continue;  // Hangul syllables are whole, surrogates do not occur
    if (CombiningClass(c) != 0 && roles[c] == Role::kInert) roles[c] = Role::kMark;
    utf8proc_int32_t parts[kLongestDecomposition];
    const int count = Decompose(c, parts);
    if (count == 1 && parts[0] == static_cast<utf8proc_int32_t>(c)) continue;
    // Form C composes a character again only where that gives the same one back; all others are active.
    if (utf8proc_normalize_utf32(parts, count,
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE)) != 1 ||
        parts[0] != static_cast<utf8proc_int32_t>(c)) {
      roles[c] = Role::kActive;
    }
    Decompose(c, parts);
    for (int i = 1; i < count; ++i) roles[parts[i]] = Role::kActive;
  }
  std::fill(&roles[kFirstVowel], &roles[kLastFinal] + 1, Role::kActive);
  for (const NfcRange& r : kKept) std::fill(&roles[r.first], &roles[r.last] + 1, Role::kInert);
  return roles;
}

const Role* Roles() {
  static const std::vector<Role> roles = BuildRoles();
  return roles.data();
}

bool IsKept(char32_t c) {
  return std::any_of(std::begin(kKept), std::end(kKept),
                     [c](NfcRange r) { return c >= r.first && c <= r.last; });
}

// Sorts each run of combining marks by class. utf8proc's own way is quadratic in the length of a run.
void OrderMarks(std::vector<utf8proc_int32_t>* text) {
  const auto by_class = [](utf8proc_int32_t a, utf8proc_int32_t b) {
    return CombiningClass(a) < CombiningClass(b);
  };
  for (auto it = text->begin(); it != text->end();) {
    const auto is_mark = [](utf8proc_int32_t c) { return CombiningClass(c) != 0; };
    const auto first = std::find_if(it, text->end(), is_mark);
    it = std::find_if_not(first, text->end(), is_mark);
    std::stable_sort(first, it, by_class);
  }
}

// Appends the form C of what was decomposed so far, and empties it.
void Flush(std::vector<utf8proc_int32_t>* pending, std::string* out) {
  OrderMarks(pending);
  const auto length =
      utf8proc_normalize_utf32(pending->data(), static_cast<utf8proc_ssize_t>(pending->size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) throw Error("text", utf8proc_errmsg(length), "shorten the text");
  for (utf8proc_ssize_t i = 0; i < length; ++i) AppendUtf8(out, static_cast<char32_t>((*pending)[i]));
  pending->clear();
}

}  // namespace

bool IsSurelyNfc(std::string_view text) {
  constexpr unsigned char kFirstLead =
      0xCC;  // U+0300; every character below is inert or composes with a mark above
  const Role* roles = nullptr;
  int last_class = 0;
  for (size_t offset = 0; offset < text.size();) {
    if (static_cast<unsigned char>(text[offset]) < kFirstLead) {
      ++offset;  // one byte at a time is enough: continuation bytes lie below kFirstLead too
      last_class = 0;
      continue;
    }
    if (!roles) roles = Roles();
    const char32_t c = DecodeValid(text, &offset);
    if (roles[c] == Role::kActive) return false;
    const int combining_class = roles[c] == Role::kMark ? CombiningClass(c) : 0;
    if (combining_class != 0 && combining_class < last_class) return false;
    last_class = combining_class;
  }
  return true;
}

std::string ToNfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<utf8proc_int32_t> pending;
  for (size_t offset = 0; offset < text.size();) {
    const char32_t c = DecodeValid(text, &offset);
    if (IsKept(c)) {
      Flush(&pending, &out);
      AppendUtf8(&out, c);
      continue;
    }
    utf8proc_int32_t parts[kLongestDecomposition];
    const int count = Decompose(c, parts);
    pending.insert(pending.end(), parts, parts + count);
  }
  Flush(&pending, &out);
  return out;
}

}  // namespace augur
