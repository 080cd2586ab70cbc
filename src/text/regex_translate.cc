#include "text/regex_translate.h"

#include <cctype>

#include "base/error.h"
#include "text/unicode_class.h"

namespace augur {
namespace {

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : pattern_(pattern), where_(where) {}

  std::string Run() {
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '\\') {
        Escape();
      } else if (in_brackets_) {
        InBrackets();
      } else {
        Outside();
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void Refuse(std::string_view construct) const {
    throw Error(where_, fmt::format("the split pattern uses \"{}\", which Augur does not support", construct),
                "use a tokenizer with the pattern of GPT-2, Llama 3 or Qwen2, or one without this construct");
  }

  std::string_view Rest() const { return pattern_.substr(at_); }

  void Copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  // A class given by what stands between brackets; its complement exists only outside of others.
  void Class(const std::string& members, bool complement, size_t length) {
    if (in_brackets_ && complement) Refuse("[..." + std::string(Rest().substr(0, length)) + "...]");
    out_ += in_brackets_ ? members : (complement ? "[^" : "[") + members + "]";
    at_ += length;
  }

  void Property() {
    const size_t end = pattern_.find('}', at_);
    if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' || end == std::string_view::npos) {
      Refuse(Rest().substr(0, 3));
    }
    const std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    for (const char c : name) {
      if (!std::isalpha(static_cast<unsigned char>(c)) && c != '_') Refuse(Rest().substr(0, end + 1 - at_));
    }
    std::string members = fmt::format("\\p{{{}}}", name);
    if (name == "L") members += NewLetterRanges();
    if (name == "N") members += NewNumberRanges();
    Class(members, pattern_[at_ + 1] == 'P', end + 1 - at_);
  }

  void Escape() {
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    if (c == 'p' || c == 'P') return Property();
    if (c == 's' || c == 'S') return Class(SpaceRanges(), c == 'S', 2);
    const bool plain =
        c == 'r' || c == 'n' || c == 't' || c == 'f' || std::ispunct(static_cast<unsigned char>(c));
    if (!plain) Refuse(Rest().substr(0, 2));
    Copy(2);
  }

  void InBrackets() {
    if (pattern_[at_] == '[') Refuse("[...[");
    if (Rest().starts_with("&&")) Refuse("&&");
    if (pattern_[at_] == ']') in_brackets_ = false;
    Copy(1);
  }

  void Outside() {
    switch (pattern_[at_]) {
      case '[':
        in_brackets_ = true;
        Copy(Rest().starts_with("[^") ? 2 : 1);
        if (Rest().starts_with("]")) Refuse("[]");
        return;
      case '(':
        return Group();
      case '{':
        if (Rest().starts_with("{,")) Refuse("{,");
        return Copy(1);
      case '}':
        if (Rest().starts_with("}+")) Refuse("}+");  // possessive in PCRE2, a second repetition in Oniguruma
        return Copy(1);
      case '^':
      case '$':  // of a line in Oniguruma, of the text in PCRE2
      case '.':
        Refuse(Rest().substr(0, 1));
      default:
        return Copy(1);
    }
  }

  void Group() {
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (Rest().starts_with(known)) return Copy(known.size());
    }
    if (Rest().starts_with("(?") || Rest().starts_with("(*")) Refuse(Rest().substr(0, 3));
    Copy(1);
  }

  std::string_view pattern_;
  std::string_view where_;
  std::string out_;
  size_t at_ = 0;
  bool in_brackets_ = false;
};

}  // namespace

std::string TranslatePattern(std::string_view pattern, std::string_view where) {
  return Translator(pattern, where).Run();
}

}  // namespace augur
