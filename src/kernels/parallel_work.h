// When a loop is worth a second thread.
#pragma once

#include <cstdint>

namespace augur {

// Below about ten microseconds of work the waiting for the other threads costs more than they save. Counted
// in multiply-adds or the like.
inline bool WorthThreads(int64_t operations) { return operations > 300'000; }

}  // namespace augur
