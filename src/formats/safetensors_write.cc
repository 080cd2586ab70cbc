#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "formats/safetensors.h"
#include "formats/sizes.h"

namespace augur {
namespace {

uint64_t SizeOf(const TensorSource& tensor, std::string_view where) {
  const auto elements = ElementCount(tensor.shape);
  const auto size = elements ? CheckedProduct(*elements, DTypeSize(tensor.dtype)) : std::nullopt;
  if (!size) {
    throw Error(
        where, fmt::format("tensor {} of shape {} has no valid size", Quoted(tensor.name), tensor.shape), "");
  }
  return *size;
}

// Composed by hand, entry by entry: nlohmann's ordered objects look keys up in linear time.
std::string Header(const std::vector<TensorSource>& tensors,
                   const std::map<std::string, std::string>& metadata, std::string_view where) {
  std::string text = "{";
  if (!metadata.empty()) text += fmt::format("\"__metadata__\":{},", Json(metadata).dump());
  std::set<std::string_view> names;
  uint64_t offset = 0;
  for (const TensorSource& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw Error(where, fmt::format("two tensors are named {}", Quoted(tensor.name)), "");
    }
    const auto end = CheckedSum(offset, SizeOf(tensor, where));
    if (!end) throw Error(where, "the tensors' sizes overflow", "");
    text +=
        fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}},)", Json(tensor.name).dump(),
                    DTypeName(tensor.dtype), fmt::join(tensor.shape, ","), offset, *end);
    offset = *end;
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data begins aligned
  return text;
}

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TensorSource SourceOf(std::string name, DType dtype, std::vector<int64_t> shape,
                      std::span<const std::byte> bytes) {
  return {std::move(name), dtype, std::move(shape), [bytes](const ByteSink& sink) { sink(bytes); }};
}

void WriteSafetensors(const std::filesystem::path& path, std::vector<TensorSource> tensors,
                      const std::map<std::string, std::string>& metadata) {
  const std::string where = path.string();
  std::ranges::sort(tensors, [](const TensorSource& a, const TensorSource& b) {
    const size_t a_size = DTypeSize(a.dtype), b_size = DTypeSize(b.dtype);
    return a_size != b_size ? a_size > b_size : a.name < b.name;
  });
  const std::string header = Header(tensors, metadata, where);
  const uint64_t length = header.size();
  AtomicFile file(path);
  file.Write({reinterpret_cast<const char*>(&length), sizeof(length)});
  file.Write(header);
  for (const TensorSource& tensor : tensors) {
    uint64_t written = 0;
    tensor.write([&](std::span<const std::byte> piece) {
      file.Write(AsText(piece));
      written += piece.size();
    });
    if (written != SizeOf(tensor, where)) {
      throw std::logic_error(
          fmt::format("tensor {} gave {} bytes, not its size", Quoted(tensor.name), written));
    }
  }
  file.Commit();
}

}  // namespace augur
