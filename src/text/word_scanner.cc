#include "text/word_scanner.h"

#include "text/unicode_class.h"

namespace augur {
namespace {

constexpr std::string_view kGpt2Text =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Text =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Text =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

bool IsNewline(char c) { return c == '\r' || c == '\n'; }

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), classes_(CharClasses()) {}

  // Class of the character at `offset`, and where it ends. At the end of the text: kSpace, since all patterns
  // treat the end as they treat a space after a word.
  CharClass At(size_t offset, size_t* end) const {
    if (offset >= text_.size()) {
      *end = offset;
      return CharClass::kSpace;
    }
    *end = offset;
    return classes_[DecodeValid(text_, end)];
  }

  size_t SkipWhile(CharClass wanted, size_t offset) const {
    while (offset < text_.size()) {
      size_t next = offset;
      if (classes_[DecodeValid(text_, &next)] != wanted) break;
      offset = next;
    }
    return offset;
  }

  // Length of 's 't 're 've 'm 'll 'd at an apostrophe, 0 if none stands there.
  size_t Contraction(size_t offset, bool any_case) const {
    const std::string_view rest = text_.substr(offset + 1);
    if (rest.empty()) return 0;
    const auto lower = [any_case](char c) { return any_case && c >= 'A' && c <= 'Z' ? c + 32 : c; };
    const int first = lower(rest[0]);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if (any_case && rest.starts_with("\xC5\xBF")) return 3;  // U+017F, the long s, folds to s
    if (rest.size() < 2) return 0;
    const int second = lower(rest[1]);
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e')) return 3;
    return first == 'l' && second == 'l' ? 3 : 0;
  }

  // \s+(?!\S)|\s+ : the whole run at the end of the text, all but its last character before something else,
  // and a single space character alone.
  size_t SpaceRunEnd(size_t start) const {
    size_t last = start, end = start;
    while (end < text_.size()) {
      size_t next = end;
      if (classes_[DecodeValid(text_, &next)] != CharClass::kSpace) break;
      last = end;
      end = next;
    }
    return end == text_.size() || last == start ? end : last;
  }

  size_t Gpt2(size_t start) const {
    if (text_[start] == '\'') {
      if (const size_t length = Contraction(start, false)) return start + length;
    }
    const size_t first = start + (text_[start] == ' ');
    size_t after;
    const CharClass kind = At(first, &after);
    return kind == CharClass::kSpace ? SpaceRunEnd(start) : SkipWhile(kind, after);
  }

  size_t Llama3(size_t start, int digits) const {
    if (text_[start] == '\'') {
      if (const size_t length = Contraction(start, true)) return start + length;
    }
    size_t after, second_end;
    const CharClass kind = At(start, &after);
    if (kind == CharClass::kLetter) return SkipWhile(CharClass::kLetter, after);
    if (kind == CharClass::kNumber) return NumberEnd(after, digits);
    const CharClass second = At(after, &second_end);
    if (second == CharClass::kLetter && !IsNewline(text_[start])) {
      return SkipWhile(CharClass::kLetter, second_end);
    }
    if (kind == CharClass::kOther) return SymbolsEnd(after);
    if (text_[start] == ' ' && second == CharClass::kOther) return SymbolsEnd(second_end);
    const size_t newline = AfterLastNewline(start);
    return newline > start ? newline : SpaceRunEnd(start);
  }

 private:
  size_t NumberEnd(size_t offset, int digits) const {
    for (int i = 1; i < digits && offset < text_.size(); ++i) {
      size_t next;
      if (At(offset, &next) != CharClass::kNumber) break;
      offset = next;
    }
    return offset;
  }

  // [^\s\p{L}\p{N}]+[\r\n]*
  size_t SymbolsEnd(size_t offset) const {
    offset = SkipWhile(CharClass::kOther, offset);
    while (offset < text_.size() && IsNewline(text_[offset])) ++offset;
    return offset;
  }

  // \s*[\r\n]+ : the end of the last newline in the run of spaces; `start` if the run has none.
  size_t AfterLastNewline(size_t start) const {
    size_t found = start;
    for (size_t offset = start; offset < text_.size();) {
      const bool newline = IsNewline(text_[offset]);
      if (classes_[DecodeValid(text_, &offset)] != CharClass::kSpace) break;
      if (newline) found = offset;
    }
    return found;
  }

  std::string_view text_;
  const CharClass* classes_;
};

}  // namespace

std::string_view PatternText(KnownPattern pattern) {
  switch (pattern) {
    case KnownPattern::kGpt2:
      return kGpt2Text;
    case KnownPattern::kLlama3:
      return kLlama3Text;
    default:
      return kQwen2Text;
  }
}

std::optional<KnownPattern> RecognisePattern(std::string_view regex) {
  for (const KnownPattern pattern : {KnownPattern::kGpt2, KnownPattern::kLlama3, KnownPattern::kQwen2}) {
    if (regex == PatternText(pattern)) return pattern;
  }
  return std::nullopt;
}

size_t WordEnd(KnownPattern pattern, std::string_view text, size_t start) {
  const Scanner scanner(text);
  switch (pattern) {
    case KnownPattern::kGpt2:
      return scanner.Gpt2(start);
    case KnownPattern::kLlama3:
      return scanner.Llama3(start, 3);
    default:
      return scanner.Llama3(start, 1);
  }
}

}  // namespace augur
