// When a loop is worth a second thread.
#pragma once

#include <cstdint>

namespace augur {

// Below a few microseconds of work the barrier of the threads costs more than they save. Counted in
// operations on single numbers.
inline bool WorthThreads(int64_t operations) { return operations > 100'000; }

}  // namespace augur
