// Values as bytes for another process of the same program, and back.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace augur {

class ByteWriter {
 public:
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void Put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void Put(const std::vector<T>& values) {
    Put(static_cast<uint64_t>(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void Put(const std::string& text) {
    Put(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// In the order of the writer's calls.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void Get(T* value) {
    Take(value, sizeof(T));
  }
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void Get(std::vector<T>* values) {
    values->resize(Count(sizeof(T)));
    Take(values->data(), values->size() * sizeof(T));
  }
  void Get(std::string* text) {
    text->resize(Count(1));
    Take(text->data(), text->size());
  }
  template <typename T>
  T Next() {
    T value{};
    Get(&value);
    return value;
  }
  bool done() const { return bytes_.empty(); }

 private:
  size_t Count(size_t each) {
    const auto count = Next<uint64_t>();
    if (count > bytes_.size() / each) Fail();
    return count;
  }
  void Take(void* to, size_t count) {
    if (count > bytes_.size()) Fail();
    if (count > 0) std::memcpy(to, bytes_.data(), count);
    bytes_.remove_prefix(count);
  }
  [[noreturn]] static void Fail() {
    throw Error("message of another rank", "ends early", "start the same version on every rank");
  }

  std::string_view bytes_;
};

}  // namespace augur
