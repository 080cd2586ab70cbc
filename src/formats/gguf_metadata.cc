#include "formats/gguf_metadata.h"

#include "base/utf8.h"
#include "formats/gguf_cursor.h"

namespace augur {
namespace {

// The element at the cursor, or nothing for one that is no integer of int64's range.
std::optional<int64_t> NextInteger(GgufCursor& cursor, GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
      return cursor.Number<uint8_t>("value");
    case GgufValueType::kInt8:
      return cursor.Number<int8_t>("value");
    case GgufValueType::kUint16:
      return cursor.Number<uint16_t>("value");
    case GgufValueType::kInt16:
      return cursor.Number<int16_t>("value");
    case GgufValueType::kUint32:
      return cursor.Number<uint32_t>("value");
    case GgufValueType::kInt32:
      return cursor.Number<int32_t>("value");
    case GgufValueType::kInt64:
      return cursor.Number<int64_t>("value");
    default:
      return std::nullopt;
  }
}

}  // namespace

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  const auto found = content_.metadata.find(key);
  return found == content_.metadata.end() ? nullptr : &found->second;
}

Error GgufMetadata::Mistyped(std::string_view key, std::string_view wanted) const {
  return Error(where_, fmt::format("the value of \"{}\" is not {}", key, wanted),
               "the file does not follow the GGUF specification; convert the original model again");
}

std::string GgufMetadata::Text(std::string_view key, std::string_view bytes) const {
  if (FirstInvalidUtf8(bytes) != std::string_view::npos) {
    throw Error(where_, fmt::format("\"{}\" holds {}, which is not UTF-8", key, Quoted(bytes)),
                "convert the original model again");
  }
  return std::string(bytes);
}

std::optional<int64_t> GgufMetadata::Integer(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* plain = std::get_if<int64_t>(value)) return *plain;
  const auto* natural = std::get_if<uint64_t>(value);
  if (natural == nullptr || *natural > INT64_MAX) throw Mistyped(key, "an integer");
  return static_cast<int64_t>(*natural);
}

std::optional<double> GgufMetadata::Number(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* real = std::get_if<double>(value)) return *real;
  if (const auto* plain = std::get_if<int64_t>(value)) return static_cast<double>(*plain);
  if (const auto* natural = std::get_if<uint64_t>(value)) return static_cast<double>(*natural);
  throw Mistyped(key, "a number");
}

std::optional<bool> GgufMetadata::Bool(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(value)) return *flag;
  throw Mistyped(key, "a boolean");
}

std::optional<std::string> GgufMetadata::String(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const auto* text = std::get_if<std::string_view>(value);
  if (text == nullptr) throw Mistyped(key, "a string");
  return Text(key, *text);
}

std::optional<std::vector<std::string>> GgufMetadata::Strings(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr || array->type != GgufValueType::kString) throw Mistyped(key, "an array of strings");
  std::vector<std::string> strings;
  GgufCursor cursor(array->bytes, where_);
  for (uint64_t i = 0; i < array->size; ++i) strings.push_back(Text(key, cursor.String("string")));
  return strings;
}

std::optional<std::vector<int64_t>> GgufMetadata::Integers(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr) throw Mistyped(key, "an array of integers");
  std::vector<int64_t> integers;
  GgufCursor cursor(array->bytes, where_);
  for (uint64_t i = 0; i < array->size; ++i) {
    const auto next = NextInteger(cursor, array->type);
    if (!next) throw Mistyped(key, "an array of integers");
    integers.push_back(*next);
  }
  return integers;
}

int64_t GgufMetadata::RequireInteger(std::string_view key) const {
  if (const auto value = Integer(key)) return *value;
  throw Error(where_, fmt::format("the key \"{}\" is missing", key), "convert the original model again");
}

}  // namespace augur
