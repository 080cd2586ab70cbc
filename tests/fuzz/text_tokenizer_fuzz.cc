// A tokenizer.json, then a line "---", then a text to encode. Where the tokenizer loads, encoding must end,
// and decoding all at once and piece by piece must agree. The bytes are also read as a chat template.
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/utf8.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace {

void TryText(const augur::Tokenizer& tokenizer, std::string_view bytes) {
  const std::vector<int32_t> ids = tokenizer.Encode(augur::LossyUtf8(bytes));
  augur::IncrementalDecoder decoder(tokenizer);
  std::string joined;
  for (const int32_t id : ids) {
    const std::string part = decoder.Add(id);
    if (augur::FirstInvalidUtf8(part) != std::string_view::npos) std::abort();
    joined += part;
  }
  if (joined + decoder.Finish() != tokenizer.Decode(ids)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  augur::IdentifyTemplate(input);
  const size_t cut = std::min(input.find("\n---\n"), size);
  try {
    const auto tokenizer = augur::Tokenizer::FromJson(input.substr(0, cut), "fuzz");
    TryText(tokenizer, input.substr(std::min(cut + 5, size)));
  } catch (const augur::Error&) {
  }
  return 0;
}
