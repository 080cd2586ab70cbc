// Prompts as tokens, and what becomes of those that are too long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/names.h"
#include "data/prompt.h"

namespace augur {

enum class Overlong {
  kError,         // stop and name the prompt
  kDrop,          // leave the prompt out
  kTruncateLeft,  // keep its last tokens
};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<Overlong>{"error", "drop", "truncate_left"};

struct TokenizedPrompts {
  // Side by side. A prompt keeps its index when others are dropped.
  std::vector<Prompt> prompts;
  std::vector<std::vector<int32_t>> tokens;
  size_t dropped = 0;
  size_t truncated = 0;
};

// Tokenizes every prompt with `encode` and deals with those of more than `most_tokens`. Throws Error at the
// prompt's file and line under kError, and when none is left.
TokenizedPrompts TokenizePrompts(std::vector<Prompt> prompts,
                                 const std::function<std::vector<int32_t>(const Prompt&)>& encode,
                                 size_t most_tokens, Overlong overlong);

}  // namespace augur
