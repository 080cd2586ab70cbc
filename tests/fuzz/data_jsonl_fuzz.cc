// Any bytes as a JSONL prompt set: read, or refused with an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/jsonl.h"
#include "data/prompt_set.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    augur::ForEachJsonLine(text, "fuzz", [](const augur::Json& row, size_t, bool) {
      const augur::Prompt prompt = augur::PromptFromRow(row, {}, "fuzz");
      if (prompt.text.empty() == prompt.messages.empty()) __builtin_trap();
    });
  } catch (const augur::Error&) {
  }
  return 0;
}
