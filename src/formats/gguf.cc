#include "formats/gguf.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <charconv>

#include "base/utf8.h"
#include "formats/gguf_cursor.h"
#include "formats/sizes.h"

namespace augur {
namespace {

constexpr uint64_t kDefaultAlignment = 32;
constexpr uint32_t kMostDimensions = 4;

// The double that a float32's shortest decimal form denotes.
double Shortest(float value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  double result = value;
  std::from_chars(text, end, result);
  return result;
}

size_t FixedSize(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
      return 2;
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kFloat32:
      return 4;
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
    case GgufValueType::kFloat64:
      return 8;
    default:
      return 0;
  }
}

GgufArray ReadArray(GgufCursor& cursor, std::string_view key) {
  const auto number = cursor.Number<uint32_t>("array type");
  const auto type = static_cast<GgufValueType>(number);
  const auto size = cursor.Number<uint64_t>("array size");
  const size_t begin = cursor.offset();
  if (const size_t width = FixedSize(type); width > 0) {
    const auto bytes = CheckedProduct(size, width);
    if (!bytes) throw cursor.Fault(fmt::format("array {} of {} values overflows", Quoted(key), size));
    cursor.Take(*bytes, "array");
  } else if (type == GgufValueType::kString) {
    for (uint64_t i = 0; i < size; ++i) cursor.String("string in an array");
  } else {
    throw cursor.Fault(fmt::format("array {} has elements of type {}", Quoted(key), number));
  }
  return {type, size, cursor.bytes().subspan(begin, cursor.offset() - begin)};
}

GgufValue ReadValue(GgufCursor& cursor, std::string_view key) {
  const auto number = cursor.Number<uint32_t>("value type");
  switch (static_cast<GgufValueType>(number)) {
    case GgufValueType::kUint8:
      return uint64_t{cursor.Number<uint8_t>("value")};
    case GgufValueType::kInt8:
      return int64_t{cursor.Number<int8_t>("value")};
    case GgufValueType::kUint16:
      return uint64_t{cursor.Number<uint16_t>("value")};
    case GgufValueType::kInt16:
      return int64_t{cursor.Number<int16_t>("value")};
    case GgufValueType::kUint32:
      return uint64_t{cursor.Number<uint32_t>("value")};
    case GgufValueType::kInt32:
      return int64_t{cursor.Number<int32_t>("value")};
    case GgufValueType::kUint64:
      return cursor.Number<uint64_t>("value");
    case GgufValueType::kInt64:
      return cursor.Number<int64_t>("value");
    case GgufValueType::kFloat32:
      return Shortest(cursor.Number<float>("value"));
    case GgufValueType::kFloat64:
      return cursor.Number<double>("value");
    case GgufValueType::kBool:
      return cursor.Number<uint8_t>("value") != 0;
    case GgufValueType::kString:
      return cursor.String("string");
    case GgufValueType::kArray:
      return ReadArray(cursor, key);
  }
  throw cursor.Fault(fmt::format("key {} has the unknown value type {}", Quoted(key), number));
}

struct Counts {
  uint64_t tensors, keys;
};

Counts ReadHead(GgufCursor& cursor, std::string_view where) {
  const auto file = cursor.bytes();
  if (file.empty()) throw Error(where, "the file is empty", "fetch it again");
  RefuseLfsPointer({reinterpret_cast<const char*>(file.data()), file.size()}, where);
  if (file.size() < 4 || std::memcmp(file.data(), "GGUF", 4) != 0) {
    throw Error(where, "does not begin with \"GGUF\"", "name a GGUF file");
  }
  cursor.Take(4, "magic");
  const auto version = cursor.Number<uint32_t>("version");
  if (version != 0 && (version & 0xFFFF) == 0) {
    throw Error(where, "is a big-endian GGUF file", "use the little-endian one");
  }
  if (version != 2 && version != 3) {
    throw Error(where, fmt::format("has GGUF version {}; Augur reads 2 and 3", version),
                "convert the original model again with a current llama.cpp");
  }
  const auto tensors = cursor.Number<uint64_t>("tensor count");
  const auto keys = cursor.Number<uint64_t>("key count");
  return {tensors, keys};
}

void ReadMetadata(GgufCursor& cursor, uint64_t count, GgufContent* content) {
  for (uint64_t i = 0; i < count; ++i) {
    const std::string_view key = cursor.String("key");
    const auto [place, inserted] = content->metadata.try_emplace(std::string(key));
    if (!inserted) throw cursor.Fault(fmt::format("the key {} occurs twice", Quoted(key)));
    place->second = ReadValue(cursor, key);
  }
}

uint64_t ReadAlignment(const GgufContent& content, const GgufCursor& cursor) {
  const auto found = content.metadata.find("general.alignment");
  if (found == content.metadata.end()) return kDefaultAlignment;
  const uint64_t* alignment = std::get_if<uint64_t>(&found->second);
  if (alignment == nullptr || !std::has_single_bit(*alignment) || *alignment > UINT32_MAX) {
    throw cursor.Fault("\"general.alignment\" is not a power of two");
  }
  return *alignment;
}

// A tensor's description; its place in the data is known once all are read.
struct Description {
  std::string name;
  GgufTensor tensor;
  uint64_t offset, size;
};

std::vector<int64_t> ReadShape(GgufCursor& cursor, std::string_view name) {
  const auto dimensions = cursor.Number<uint32_t>("number of dimensions");
  if (dimensions == 0 || dimensions > kMostDimensions) {
    throw cursor.Fault(fmt::format("tensor {} has {} dimensions", Quoted(name), dimensions));
  }
  std::vector<int64_t> shape;
  for (uint32_t i = 0; i < dimensions; ++i) {
    const auto extent = cursor.Number<uint64_t>("dimension");
    if (extent > INT64_MAX) throw cursor.Fault(fmt::format("tensor {} has size {}", Quoted(name), extent));
    shape.insert(shape.begin(), static_cast<int64_t>(extent));
  }
  return shape;
}

Description ReadDescription(GgufCursor& cursor, std::string_view where) {
  Description d;
  d.name = cursor.String("tensor name");
  d.tensor.shape = ReadShape(cursor, d.name);
  const auto number = cursor.Number<uint32_t>("tensor type");
  const GgmlTypeInfo* info = FindGgmlType(number);
  if (info == nullptr) {
    throw Error(where,
                fmt::format("tensor {} has GGML type {}, which Augur does not read", Quoted(d.name),
                            GgmlTypeName(number)),
                fmt::format("use a file with {}", GgmlTypeNames()));
  }
  d.tensor.type = info->type;
  d.offset = cursor.Number<uint64_t>("tensor offset");
  const auto values = ElementCount(d.tensor.shape);
  const auto size = values ? CheckedProduct(*values / info->block_values, info->block_bytes) : std::nullopt;
  if (!size)
    throw cursor.Fault(
        fmt::format("tensor {} has a shape {} whose size overflows", Quoted(d.name), d.tensor.shape));
  if (d.tensor.shape.back() % static_cast<int64_t>(info->block_values) != 0) {
    throw cursor.Fault(fmt::format("tensor {} has rows of {} values, not whole {} blocks of {}",
                                   Quoted(d.name), d.tensor.shape.back(), info->name, info->block_values));
  }
  d.size = *size;
  return d;
}

// In order of their place, each tensor begins where the one before ends, rounded up to the alignment.
void PlaceTensors(std::vector<Description> descriptions, std::span<const std::byte> data, uint64_t alignment,
                  std::string_view where, GgufContent* content) {
  const auto fault = [&](const Description& d, std::string_view what) {
    return Error(where, fmt::format("tensor {} {}", Quoted(d.name), what),
                 "the file is damaged or incomplete; fetch it again");
  };
  std::ranges::sort(descriptions, {}, [](const Description& d) { return std::pair(d.offset, d.size); });
  uint64_t expected = 0, end = 0;
  for (Description& d : descriptions) {
    if (d.offset % alignment != 0)
      throw fault(d, fmt::format("at offset {} is not aligned to {}", d.offset, alignment));
    if (d.offset < expected) throw fault(d, "overlaps the tensor before it");
    if (d.offset > expected)
      throw fault(d, fmt::format("comes after a gap of {} bytes", d.offset - expected));
    if (d.offset > data.size() || d.size > data.size() - d.offset) {
      throw fault(d, fmt::format("of {} bytes at offset {} reaches past the end of the data ({} bytes)",
                                 d.size, d.offset, data.size()));
    }
    d.tensor.bytes = data.subspan(d.offset, d.size);
    end = d.offset + d.size;
    expected = (end + alignment - 1) / alignment * alignment;
    if (!content->tensors.emplace(d.name, std::move(d.tensor)).second) throw fault(d, "occurs twice");
  }
  if (data.size() > expected) {
    throw Error(where, fmt::format("{} bytes after the last tensor", data.size() - end),
                "the file is damaged; fetch it again");
  }
}

}  // namespace

GgufContent ParseGguf(std::span<const std::byte> file, std::string_view where) {
  GgufCursor cursor(file, where);
  GgufContent content;
  const Counts counts = ReadHead(cursor, where);
  ReadMetadata(cursor, counts.keys, &content);
  std::vector<Description> descriptions;
  for (uint64_t i = 0; i < counts.tensors; ++i) descriptions.push_back(ReadDescription(cursor, where));
  const uint64_t alignment = ReadAlignment(content, cursor);
  const uint64_t padding = (alignment - cursor.offset() % alignment) % alignment;
  const bool has_data = padding <= file.size() - cursor.offset();
  if (!has_data && !descriptions.empty()) throw cursor.Fault("the file ends before its tensors");
  const auto data = has_data ? file.subspan(cursor.offset() + padding) : std::span<const std::byte>();
  PlaceTensors(std::move(descriptions), data, alignment, where, &content);
  return content;
}

GgufFile::GgufFile(const std::filesystem::path& path)
    : file_(path), content_(ParseGguf(file_.bytes(), path.string())) {}

}  // namespace augur
