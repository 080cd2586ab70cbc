// An orderly end on SIGINT or SIGTERM.
#pragma once

namespace augur {

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
