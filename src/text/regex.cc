#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "text/regex_translate.h"
#include "text/unicode_class.h"

namespace augur {
namespace {

// Backtracking steps allowed for one match: linear in the text, so that no pattern can run without end.
constexpr uint64_t kStepsPerByte = 16;
constexpr uint64_t kLeastSteps = 1'000'000;
constexpr uint32_t kHeapKilobytes = 64 * 1024;
constexpr size_t kLongestPattern = 16 * 1024;

std::string MessageOf(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
using MatchContext = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;

}  // namespace

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  std::string where;
  ~Compiled() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, std::string_view where) {
  Compile(TranslatePattern(pattern, where), PCRE2_UTF | PCRE2_UCP, where);
}

Regex Regex::Literal(std::string_view text, std::string_view where) {
  Regex regex;
  regex.Compile(text, PCRE2_UTF | PCRE2_LITERAL, where);
  return regex;
}

void Regex::Compile(std::string_view pcre_pattern, uint32_t options, std::string_view where) {
  if (pcre_pattern.size() > kLongestPattern) {
    throw Error(where, fmt::format("the split pattern is longer than {} bytes", kLongestPattern),
                "this is not a tokenizer Augur can use");
  }
  auto compiled = std::make_shared<Compiled>();
  compiled->where = where;
  int code = 0;
  size_t offset = 0;
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre_pattern.data()), pcre_pattern.size(),
                                 options, &code, &offset, nullptr);
  if (!compiled->code) {
    throw Error(where,
                fmt::format("the split pattern is not a regular expression: {} at byte {} of {}",
                            MessageOf(code), offset, pcre_pattern),
                "correct the pattern");
  }
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);  // where it fails the interpreter serves
  compiled_ = std::move(compiled);
}

void Regex::Isolate(std::string_view text, const std::function<void(std::string_view)>& on_piece) const {
  const MatchData data(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const MatchContext context(pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  const uint64_t steps = std::max<uint64_t>(kLeastSteps, kStepsPerByte * text.size());
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  pcre2_set_heap_limit(context.get(), kHeapKilobytes);

  const auto match = [&](size_t from) {
    const auto run = [&](uint32_t options) {
      return pcre2_match(compiled_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                         options | PCRE2_NO_UTF_CHECK, data.get(), context.get());
    };
    const int result = run(0);
    // The JIT has 32 KiB of stack for backtracking; the interpreter takes what it needs from the heap.
    return result == PCRE2_ERROR_JIT_STACKLIMIT ? run(PCRE2_NO_JIT) : result;
  };
  const auto emit = [&](size_t begin, size_t end) {
    if (begin < end) on_piece(text.substr(begin, end - begin));
  };

  size_t done = 0;  // everything before is emitted
  size_t from = 0;
  bool matched_before = false;
  while (from <= text.size()) {
    const int result = match(from);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      throw Error(compiled_->where,
                  fmt::format("the split pattern gave up at byte {} of a text: {}", from, MessageOf(result)),
                  "shorten the text, or use a tokenizer with a simpler pattern");
    }
    const size_t* span = pcre2_get_ovector_pointer(data.get());
    const size_t begin = span[0], end = span[1];
    if (begin == end && matched_before &&
        begin == done) {  // an empty match right after the last one does not count
      if (from == text.size()) break;
      DecodeValid(text, &from);
      continue;
    }
    emit(done, begin);
    emit(begin, end);
    done = from = end;
    matched_before = true;
  }
  emit(done, text.size());
}

}  // namespace augur
