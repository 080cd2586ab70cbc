// Hand-written scanners for the three split patterns in wide use, several times the speed of PCRE2 and equal
// to it (tests compare them).
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace augur {

// kGpt2: GPT-2 and everything with ByteLevel's own pattern, SmolLM2 among them.
// kLlama3: numbers in groups of up to three digits. kQwen2: the same with single digits; Qwen2 to Qwen3.
enum class KnownPattern { kGpt2, kLlama3, kQwen2 };

// The regular expression in the notation of tokenizer.json.
std::string_view PatternText(KnownPattern pattern);

std::optional<KnownPattern> RecognisePattern(std::string_view regex);

// The end of the word that starts at `start` < text.size(). Each pattern matches at every position, so the
// words cover the text. `text` must be valid UTF-8.
size_t WordEnd(KnownPattern pattern, std::string_view text, size_t start);

}  // namespace augur
