// The `pre_tokenizer` of tokenizer.json: cuts text into the words within which BPE merges.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "text/regex.h"
#include "text/word_scanner.h"

namespace augur {

// Words in order. They refer to the text they were cut from, or to `storage` where a space was put before
// one.
struct Words {
  std::vector<std::string_view> words;
  std::deque<std::string> storage;
};

class PreTokenizer {
 public:
  // Reads Split (behaviour Isolated), Digits, ByteLevel and Sequence; ByteLevel must come last, since BPE
  // here is byte-level. Throws Error at `where` naming anything else.
  PreTokenizer(const Json& spec, std::string_view where);

  // Appends the words of `text` (valid UTF-8). Words keep the plain bytes: the byte-level alphabet only
  // exists in the file.
  void Split(std::string_view text, Words* out) const;

 private:
  struct Digits {
    bool individual;
  };
  struct PrefixSpace {};
  using Stage = std::variant<KnownPattern, Regex, Digits, PrefixSpace>;

  void AddStage(const Json& spec, std::string_view where);
  static void Apply(const Stage& stage, std::string_view piece, std::vector<std::string_view>* words,
                    std::deque<std::string>* storage);

  std::vector<Stage> stages_;
  bool byte_level_ = false;
};

}  // namespace augur
