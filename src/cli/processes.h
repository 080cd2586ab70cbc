// More processes of this program, one per core.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace augur {

enum class CopiesEnd {
  kDone,
  kStopped,  // by a signal to this process
  kKilled,   // some of them, by a signal of their own; the rest came to their end
};

// Runs this process's own command line `count` times over with `flag` appended, and waits. `waiting` is
// called about twice a second. A SIGINT or SIGTERM is passed on to them, and each is waited for. Throws
// ExitCode where one ended with a user's error, after the others were stopped.
CopiesEnd RunCopies(int count, const std::string& flag, const std::function<void()>& waiting);

// For such a copy: ends with the process that started it.
void EndWithParent();

}  // namespace augur
