// Reading a GGUF file's numbers and strings in order, never past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/error.h"

namespace augur {

class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> bytes, std::string_view where) : bytes_(bytes), where_(where) {}

  size_t offset() const { return offset_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  Error Fault(std::string_view what) const {
    return Error(where_, fmt::format("at byte {}: {}", offset_, what),
                 "the file is damaged or incomplete; fetch it again");
  }

  // The next `size` bytes; `what` names them in the Error thrown where the file ends before.
  std::span<const std::byte> Take(uint64_t size, std::string_view what) {
    if (size > bytes_.size() - offset_) {
      throw Fault(fmt::format("{} of {} bytes reaches past the end of the file ({} bytes)", what, size,
                              bytes_.size()));
    }
    const auto taken = bytes_.subspan(offset_, size);
    offset_ += size;
    return taken;
  }

  template <typename T>
  T Number(std::string_view what) {
    T value;
    std::memcpy(&value, Take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string_view String(std::string_view what) {
    const auto length = Number<uint64_t>(what);
    const auto taken = Take(length, what);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  std::string_view where_;
  size_t offset_ = 0;
};

}  // namespace augur
