// Any bytes as a response and, after the first NUL, its ground truth, under every verifier: a score or an
// Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "reward/verifier.h"

namespace {

void Score(const augur::Verifier& verifier, std::string_view response, const augur::Json& answer) {
  try {
    const double score = verifier.score(response, answer);
    if (score != verifier.right && score != verifier.wrong) __builtin_trap();
    augur::WhyUnmatchable(verifier, answer);
  } catch (const augur::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t split = text.find('\0');
  const std::string_view response = text.substr(0, split);
  const augur::Json answer = split == text.npos ? std::string_view("42") : text.substr(split + 1);
  static const augur::Json puzzle = {{"numbers", {15, 5, 5}}, {"target", 2}};
  for (const augur::Verifier& verifier : augur::Verifiers()) Score(verifier, response, answer);
  Score(augur::FindVerifier("countdown", ""), response, puzzle);
  return 0;
}
