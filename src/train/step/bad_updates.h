// Updates that were skipped because a loss or gradient was not finite, counted in a row.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "base/error.h"
#include "ops/parallel/ranks.h"

namespace augur {

class BadUpdates {
 public:
  explicit BadUpdates(int64_t limit) : limit_(limit) {}

  // Throws NotFiniteError when `limit` in a row were skipped.
  void Count(bool skipped, int64_t step) {
    in_row_ = skipped ? in_row_ + 1 : 0;
    if (in_row_ < limit_) return;
    Ranks::World().OnFirst([&] {  // all ranks know
      throw NotFiniteError(
          fmt::format("step {}", step),
          fmt::format("{} updates in a row had a loss or gradient that is not finite", in_row_),
          "lower the learning rate or grad_clip, or take model.precision fp32; what was saved before "
          "is intact");
    });
  }

  int64_t in_row() const { return in_row_; }
  void set_in_row(int64_t count) { in_row_ = count; }

 private:
  int64_t limit_;
  int64_t in_row_ = 0;
};

}  // namespace augur
