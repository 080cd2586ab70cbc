// One process per run directory, and an orderly end on SIGINT or SIGTERM.
#pragma once

#include <filesystem>

namespace augur {

// Holds the run directory, which is made where absent, for this process. Throws Error where another process
// has it. The lock goes with the process, however it ends.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_;
};

// While it lives, the first SIGINT or SIGTERM only sets a flag; a second one ends the process at once.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal's name ("SIGINT"), or null while none has come.
  static const char* Received();
};

}  // namespace augur
