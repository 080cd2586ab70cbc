#include "formats/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "formats/sizes.h"

namespace augur {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors and GGUF are little-endian");

constexpr uint64_t kLargestHeader = 100'000'000;  // the limit of the reference implementation
constexpr std::string_view kFetchAgain = "the file is damaged or incomplete; fetch it again";

// The part of the file that the header describes, and where messages say it is.
struct Source {
  std::span<const std::byte> data;
  std::string_view where;

  Error Fault(std::string_view what) const { return Error(where, what, kFetchAgain); }
  Error Fault(std::string_view tensor, std::string_view what) const {
    return Fault(fmt::format("tensor {} {}", Quoted(tensor), what));
  }
};

// The JSON text between the length and the data.
std::string_view HeaderText(std::span<const std::byte> file, std::string_view where) {
  if (file.empty()) throw Error(where, "the file is empty", "fetch it again");
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  RefuseLfsPointer(text, where);
  if (text.size() < 8) {
    throw Error(where, fmt::format("only {} bytes, too short for a safetensors header", text.size()),
                kFetchAgain);
  }
  uint64_t length;
  std::memcpy(&length, text.data(), 8);
  if (length > kLargestHeader) {
    throw Error(where, fmt::format("header of {} bytes, more than the {} allowed", length, kLargestHeader),
                "this is not a safetensors file, or it is damaged");
  }
  if (length > text.size() - 8) {
    throw Error(
        where,
        fmt::format("header of {} bytes reaches past the end of the file ({} bytes)", length, text.size()),
        kFetchAgain);
  }
  return text.substr(8, length);
}

// `array` as unsigned integers that fit int64.
std::vector<int64_t> Integers(const Json& info, const char* key, std::string_view name,
                              const Source& source) {
  const auto array = info.find(key);
  if (array == info.end() || !array->is_array())
    throw source.Fault(name, fmt::format("has no list \"{}\"", key));
  std::vector<int64_t> values;
  values.reserve(array->size());
  for (const Json& item : *array) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > INT64_MAX) {
      throw source.Fault(name, fmt::format("has {} in \"{}\", not a size", Printable(item.dump()), key));
    }
    values.push_back(item.get<int64_t>());
  }
  return values;
}

DType ReadDType(const Json& info, std::string_view name, const Source& source) {
  const auto field = info.find("dtype");
  if (field == info.end() || !field->is_string()) throw source.Fault(name, "has no \"dtype\"");
  const auto dtype = DTypeFromName(field->get_ref<const std::string&>());
  if (!dtype) {
    throw Error(source.where,
                fmt::format("tensor {} has dtype {}, which Augur does not read", Quoted(name),
                            Quoted(field->get_ref<const std::string&>())),
                "convert the weights to BF16, F16 or F32");
  }
  return *dtype;
}

TensorView ReadTensor(const Json& info, std::string_view name, const Source& source) {
  if (!info.is_object()) throw source.Fault(name, "is not described by an object");
  TensorView tensor{
      .dtype = ReadDType(info, name, source), .shape = Integers(info, "shape", name, source), .bytes = {}};
  const auto offsets = Integers(info, "data_offsets", name, source);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    throw source.Fault(name, "has \"data_offsets\" that are not [begin, end]");
  }
  const auto begin = static_cast<size_t>(offsets[0]), end = static_cast<size_t>(offsets[1]);
  if (end > source.data.size()) {
    throw source.Fault(name, fmt::format("ends at byte {} of {} bytes of data", end, source.data.size()));
  }
  const auto elements = ElementCount(tensor.shape);
  const auto size = elements ? CheckedProduct(*elements, DTypeSize(tensor.dtype)) : std::nullopt;
  if (!size) throw source.Fault(name, fmt::format("has a shape {} whose size overflows", tensor.shape));
  if (*size != end - begin) {
    throw source.Fault(name, fmt::format("of shape {} and dtype {} needs {} bytes but its range holds {}",
                                         tensor.shape, DTypeName(tensor.dtype), *size, end - begin));
  }
  tensor.bytes = source.data.subspan(begin, end - begin);
  return tensor;
}

std::map<std::string, std::string> ReadHeaderMetadata(const Json& object, const Source& source) {
  if (!object.is_object()) throw source.Fault("\"__metadata__\" is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) throw source.Fault(fmt::format("metadata {} is not a string", Quoted(key)));
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// The ranges, in order of their place, must tile the data.
void CheckCoverage(const std::map<std::string, TensorView>& tensors, const Source& source) {
  using Entry = std::pair<const std::string, TensorView>;
  std::vector<const Entry*> in_order;
  in_order.reserve(tensors.size());
  for (const Entry& entry : tensors) in_order.push_back(&entry);
  std::ranges::sort(in_order, {}, [](const Entry* entry) {
    return std::pair(entry->second.bytes.data(), entry->second.bytes.size());
  });
  const std::byte* expected = source.data.data();
  for (const Entry* entry : in_order) {
    const std::byte* begin = entry->second.bytes.data();
    if (begin < expected) throw source.Fault(entry->first, "overlaps the tensor before it");
    if (begin > expected) {
      throw source.Fault(entry->first, fmt::format("comes after a gap of {} bytes", begin - expected));
    }
    expected = begin + entry->second.bytes.size();
  }
  const auto trailing = source.data.data() + source.data.size() - expected;
  if (trailing != 0) throw source.Fault(fmt::format("{} bytes after the last tensor", trailing));
}

}  // namespace

SafetensorsContent ParseSafetensors(std::span<const std::byte> file, std::string_view where) {
  const std::string_view text = HeaderText(file, where);
  const Source source{.data = file.subspan(8 + text.size()), .where = where};
  const Json header = ParseJsonUniqueKeys(text, where);
  if (!header.is_object()) throw source.Fault("the header is not a JSON object");
  SafetensorsContent content;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      content.metadata = ReadHeaderMetadata(value, source);
    } else {
      content.tensors.emplace(name, ReadTensor(value, name, source));
    }
  }
  CheckCoverage(content.tensors, source);
  return content;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), content_(ParseSafetensors(file_.bytes(), path.string())) {}

}  // namespace augur
