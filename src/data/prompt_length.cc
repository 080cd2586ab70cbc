#include "data/prompt_length.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/stop_signals.h"

namespace augur {

TokenizedPrompts TokenizePrompts(std::vector<Prompt> prompts,
                                 const std::function<std::vector<int32_t>(const Prompt&)>& encode,
                                 size_t most_tokens, Overlong overlong) {
  TokenizedPrompts kept;
  for (Prompt& prompt : prompts) {
    CheckStop();
    std::vector<int32_t> tokens = encode(prompt);
    const size_t excess = tokens.size() - std::min(tokens.size(), most_tokens);
    if (excess > 0 && overlong == Overlong::kError) {
      throw Error(prompt.Where(),
                  fmt::format("the prompt has {} tokens, {} are allowed", tokens.size(), most_tokens),
                  "raise data.max_prompt_tokens where the model's context allows it, or set data.overlong to "
                  "drop or truncate_left");
    }
    if (excess > 0 && overlong == Overlong::kDrop) {
      ++kept.dropped;
      continue;
    }
    if (excess > 0) {
      ++kept.truncated;
      tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(excess));
    }
    kept.prompts.push_back(std::move(prompt));
    kept.tokens.push_back(std::move(tokens));
  }
  if (kept.prompts.empty()) {
    throw Error("data", fmt::format("none of {} prompts has at most {} tokens", prompts.size(), most_tokens),
                "raise data.max_prompt_tokens where the model's context allows it");
  }
  return kept;
}

}  // namespace augur
