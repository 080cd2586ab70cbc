// Any bytes are either a safetensors file whose tensors can be read to the last byte, or an Error.
#include <cstdint>

#include "base/error.h"
#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto content = augur::ParseSafetensors(std::as_bytes(std::span(data, size)), "input");
    volatile unsigned sum = 0;
    for (const auto& [name, tensor] : content.tensors) {
      for (const std::byte byte : tensor.bytes) sum = sum + static_cast<unsigned>(byte);
    }
  } catch (const augur::Error&) {
  }
  return 0;
}
