// Sizes as multiples.
#pragma once

#include <cstdint>

namespace augur {

// The least multiple that is not less than n, which is not negative.
constexpr int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace augur
