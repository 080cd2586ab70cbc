// One process per run directory.
#pragma once

#include <filesystem>
#include <string>

namespace augur {

inline constexpr const char* kRunLockFile = ".lock";

// Holds the run directory, which is made where absent, for this process. Throws Error where another process
// has it; a file system without locks gets a warning. The lock goes with the process, however it ends.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run);
  ~RunLock();

  // Writes it into the lock's file, for processes on other machines to look for.
  void Mark(const std::string& text) const;

  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_;
};

}  // namespace augur
