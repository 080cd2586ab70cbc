// One process per run directory.
#pragma once

#include <filesystem>

namespace augur {

// Holds the run directory, which is made where absent, for this process. Throws Error where another process
// has it; a file system without locks gets a warning. The lock goes with the process, however it ends.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_;
};

}  // namespace augur
