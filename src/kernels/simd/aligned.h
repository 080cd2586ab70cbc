// Memory that begins on a cache line, so that no vector straddles two.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

namespace augur {

class AlignedBytes {
 public:
  // Makes room for this many; contents are lost where that takes more memory.
  void Reserve(size_t bytes) {
    if (bytes <= size_) return;
    data_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
    size_ = bytes;
  }
  void ReserveZeros(size_t bytes) {
    Reserve(bytes);
    std::memset(data_.get(), 0, bytes);
  }
  std::byte* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

}  // namespace augur
