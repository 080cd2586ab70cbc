// Time that only goes forward.
#pragma once

#include <chrono>

namespace augur {

using Clock = std::chrono::steady_clock;

inline double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace augur
