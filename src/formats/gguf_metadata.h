// A GGUF file's metadata by key and type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/gguf.h"

namespace augur {

// Each getter gives nothing where the key is absent and throws an Error naming file and key where the value
// is of another type.
class GgufMetadata {
 public:
  GgufMetadata(const GgufContent& content, std::string where) : content_(content), where_(std::move(where)) {}

  std::optional<int64_t> Integer(std::string_view key) const;  // of any width; beyond int64 is an Error
  std::optional<double> Number(std::string_view key) const;    // a float, or an integer
  std::optional<bool> Bool(std::string_view key) const;
  std::optional<std::string> String(std::string_view key) const;  // valid UTF-8
  std::optional<std::vector<std::string>> Strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> Integers(std::string_view key) const;

  // The same where the key must be present.
  int64_t RequireInteger(std::string_view key) const;

  bool Has(std::string_view key) const { return content_.metadata.contains(key); }
  const std::string& where() const { return where_; }

 private:
  const GgufValue* Find(std::string_view key) const;
  Error Mistyped(std::string_view key, std::string_view wanted) const;
  std::string Text(std::string_view key, std::string_view bytes) const;

  const GgufContent& content_;
  std::string where_;
};

}  // namespace augur
