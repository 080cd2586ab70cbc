// Any bytes are either a GGUF file whose tensors dequantise and whose model converts as far as memory, or an
// Error.
#include <cstdint>

#include "base/error.h"
#include "formats/dequantize.h"
#include "formats/gguf_tensors.h"
#include "formats/gguf_tokenizer.h"

namespace augur {
namespace {

void ConvertInMemory(const GgufContent& content) {
  const GgufMetadata metadata(content, "input");
  const GgufModel model = ReadGgufModel(content, metadata);
  ConfigJson(model, DType::kBF16);
  GenerationConfigJson(model);
  for (const TensorSource& source : GgufSources(content, model, DType::kF16, "input", [](uint64_t) {})) {
    source.write([](std::span<const std::byte>) {});
  }
  ReadGgufTokenizer(metadata, model, std::nullopt);
}

}  // namespace
}  // namespace augur

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace augur;
  try {
    const GgufContent content = ParseGguf(std::as_bytes(std::span(data, size)), "input");
    for (const auto& [name, tensor] : content.tensors) {
      const GgmlTypeInfo& info = InfoOf(tensor.type);
      std::vector<float> values(tensor.bytes.size() / info.block_bytes * info.block_values);
      Dequantize(tensor.type, tensor.bytes, values);
    }
    ConvertInMemory(content);
  } catch (const Error&) {
  }
  return 0;
}
