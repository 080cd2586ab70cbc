// A split pattern of tokenizer.json run by PCRE2.
//
// Such patterns are written for Oniguruma. The part of its language that means the same in PCRE2 is accepted,
// the classes \p{L}, \p{N} and \s are brought to the Unicode version of CharClasses(), and the rest is
// refused by name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace augur {

class Regex {
 public:
  // Compiles `pattern`; `where` opens the Error thrown when it is not understood.
  Regex(std::string_view pattern, std::string_view where);
  // A pattern that matches exactly `text`.
  static Regex Literal(std::string_view text, std::string_view where);

  // Cuts `text` (valid UTF-8) before and after each match and calls `on_piece` for each piece, in order; the
  // pieces are not empty and cover the text. Throws Error when the pattern backtracks without bound on this
  // text.
  void Isolate(std::string_view text, const std::function<void(std::string_view)>& on_piece) const;

 private:
  struct Compiled;
  Regex() = default;
  void Compile(std::string_view pcre_pattern, uint32_t options, std::string_view where);

  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace augur
