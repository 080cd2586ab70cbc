#include "text/added_tokens.h"

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "text/unicode_class.h"

namespace augur {
namespace {

constexpr std::string_view kBrokenAddedTokens = "the file is damaged: fetch it again";

AddedToken ReadAddedToken(const Json& spec, std::string_view where) {
  AddedToken token;
  token.content = RequireString(spec, "content", where);
  const std::string place = fmt::format("{}: added token \"{}\"", where, token.content);
  const Json& id = RequireKey(spec, "id", place);
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= kAbsent) {
    throw Error(place, fmt::format("has the id {}", id.dump()), kBrokenAddedTokens);
  }
  token.id = id.get<uint32_t>();
  const auto read = [&](const char* key, bool* flag) {
    const Json& value = RequireKey(spec, key, place);
    if (!value.is_boolean())
      throw Error(place, fmt::format("\"{}\" is not true or false", key), kBrokenAddedTokens);
    *flag = value.get<bool>();
  };
  read("single_word", &token.single_word);
  read("lstrip", &token.lstrip);
  read("rstrip", &token.rstrip);
  read("normalized", &token.normalized);
  read("special", &token.special);
  return token;
}

// Start of the character that ends at `end` > 0.
size_t CharacterBefore(std::string_view text, size_t end) {
  do --end;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool WordEndsAt(std::string_view text, size_t end) {
  if (end == 0) return false;
  size_t start = CharacterBefore(text, end);
  return IsWordCharacter(DecodeValid(text, &start));
}

bool WordStartsAt(std::string_view text, size_t start) {
  return start < text.size() && IsWordCharacter(DecodeValid(text, &start));
}

size_t SkipSpacesBack(std::string_view text, size_t end, size_t least) {
  while (end > least) {
    const size_t start = CharacterBefore(text, end);
    size_t offset = start;
    if (CharClasses()[DecodeValid(text, &offset)] != CharClass::kSpace) break;
    end = start;
  }
  return end;
}

size_t SkipSpaces(std::string_view text, size_t start) {
  while (start < text.size()) {
    size_t next = start;
    if (CharClasses()[DecodeValid(text, &next)] != CharClass::kSpace) break;
    start = next;
  }
  return start;
}

}  // namespace

std::vector<AddedToken> ReadAddedTokens(const Json& list, const Bpe& model, std::string_view where) {
  if (list.is_null()) return {};
  if (!list.is_array()) throw Error(where, "\"added_tokens\" is not a list", kBrokenAddedTokens);
  std::vector<AddedToken> tokens;
  std::unordered_set<uint32_t> ids;
  auto next_id = static_cast<uint32_t>(model.count());
  for (const Json& spec : list) {
    AddedToken token = ReadAddedToken(spec, where);
    if (token.content.empty())
      throw Error(where, fmt::format("the added token {} is empty", token.id), kBrokenAddedTokens);
    if (!ids.insert(token.id).second) {
      throw Error(
          where,
          fmt::format("added token \"{}\" has the id {}, which another one has too", token.content, token.id),
          kBrokenAddedTokens);
    }
    const uint32_t in_model = model.Find(token.content);
    const uint32_t expected = in_model == kAbsent ? next_id++ : in_model;
    if (token.id != expected) {
      throw Error(
          where,
          fmt::format("added token \"{}\" has the id {}, but {} {}", token.content, token.id,
                      in_model == kAbsent ? "the next free id is" : "the vocabulary gives it", expected),
          kBrokenAddedTokens);
    }
    tokens.push_back(std::move(token));
  }
  // `tokenizers` asks the special ones first, which decides between tokens that normalise to the same text.
  std::stable_partition(tokens.begin(), tokens.end(), [](const AddedToken& token) { return token.special; });
  return tokens;
}

TokenFinder::TokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& patterns)
    : tokens_(std::move(tokens)) {
  uint32_t nodes = 1;
  for (uint32_t i = 0; i < patterns.size(); ++i) {
    uint32_t node = 0;
    for (size_t at = 0; at < patterns[i].size(); ++at) {
      const auto byte = static_cast<unsigned char>(patterns[i][at]);
      PairMap::Value step = trie_.Find(node, byte);
      if (step.first == kAbsent) step.first = nodes++;
      if (at + 1 == patterns[i].size() && step.second == kAbsent) step.second = i;
      trie_.Set(node, byte, step);
      node = step.first;
    }
    starts_[static_cast<unsigned char>(patterns[i][0])] = true;
  }
}

TokenFinder::Match TokenFinder::Next(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    Match longest{begin, begin, nullptr};
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const PairMap::Value step = trie_.Find(node, static_cast<unsigned char>(text[at]));
      if (step.first == kAbsent) break;
      if (step.second != kAbsent) longest = {begin, at + 1, &tokens_[step.second]};
      node = step.first;
    }
    if (longest.token) return longest;
  }
  return {text.size(), text.size(), nullptr};
}

void TokenFinder::Split(std::string_view text, const std::function<void(std::string_view)>& on_text,
                        const std::function<void(uint32_t)>& on_token) const {
  // Up to where the text is used. May lie past the next match, when a token with rstrip took white space with
  // which another one begins; `tokenizers` then drops the other if its lstrip leaves it nothing.
  size_t done = 0;
  for (Match match = Next(text, 0); match.token; match = Next(text, match.end)) {
    const AddedToken& token = *match.token;
    if (token.single_word && (WordEndsAt(text, match.begin) || WordStartsAt(text, match.end))) continue;
    const size_t begin = token.lstrip ? SkipSpacesBack(text, std::max(match.begin, done), done) : match.begin;
    const size_t end = token.rstrip ? SkipSpaces(text, match.end) : match.end;
    if (done < begin) on_text(text.substr(done, begin - done));
    if (begin < end) on_token(token.id);
    done = end;
  }
  if (done < text.size()) on_text(text.substr(done));
}

}  // namespace augur
