// Which pages of keys and values are in use, and by how many.
#pragma once

#include <cstdint>
#include <vector>

namespace augur {

class PagePool {
 public:
  explicit PagePool(int64_t pages) : uses_(pages, 0) {
    for (int64_t page = pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
  }

  int64_t free_pages() const { return static_cast<int64_t>(free_.size()); }
  int64_t pages() const { return static_cast<int64_t>(uses_.size()); }

  // A page with one user. There must be a free one.
  int32_t Take() {
    const int32_t page = free_.back();
    free_.pop_back();
    uses_[page] = 1;
    return page;
  }
  void Share(int32_t page) { ++uses_[page]; }
  void Drop(int32_t page) {
    if (--uses_[page] == 0) free_.push_back(page);
  }
  void DropAll(std::vector<int32_t>* pages) {
    for (const int32_t page : *pages) Drop(page);
    pages->clear();
  }

 private:
  std::vector<int32_t> uses_;
  std::vector<int32_t> free_;
};

}  // namespace augur
