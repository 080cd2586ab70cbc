// The `added_tokens` of tokenizer.json: tokens found in the text before it is cut into words.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/bpe.h"
#include "text/flat_map.h"

namespace augur {

struct AddedToken {
  uint32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character stands next to it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = true;    // sought in the normalised text, otherwise in the text as given
  bool special = false;      // left out when decoding with skip_special
};

// Reads the list and checks it against the model: every id is used once, and each token has the id
// `tokenizers` would give it. Throws Error at `where`.
std::vector<AddedToken> ReadAddedTokens(const Json& list, const Bpe& model, std::string_view where);

// Finds the tokens of one list in texts: leftmost first, the longest of those that start at one place.
class TokenFinder {
 public:
  // Token i is sought as patterns[i], which is not empty; of equal patterns the first counts.
  TokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& patterns);

  // Calls on_text for the stretches between tokens and on_token with the id of each token, in order. `text`
  // must be valid UTF-8.
  void Split(std::string_view text, const std::function<void(std::string_view)>& on_text,
             const std::function<void(uint32_t)>& on_token) const;

 private:
  struct Match {
    size_t begin, end;
    const AddedToken* token;
  };

  // The next match from `from` on; token is null if there is none.
  Match Next(std::string_view text, size_t from) const;

  std::vector<AddedToken> tokens_;
  bool starts_[256] = {};  // bytes with which a pattern begins
  PairMap trie_;           // (node, byte) -> (node, index of the token that ends there or kAbsent)
};

}  // namespace augur
